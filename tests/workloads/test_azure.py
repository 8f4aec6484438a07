"""Azure CSV: stamps with seven fractional digits, tokens in and out."""

import pytest

from workloads import TraceError, TraceRequest, read_trace


def the_error(path):
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    return str(caught.value).replace(str(path), "FILE")


def test_a_row_becomes_a_request(azure_file):
    trace = read_trace(azure_file("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8"))
    assert list(trace) == [TraceRequest("1", 0.0, 4808, 10), TraceRequest("2", 0.052, 3180, 8)]
    assert trace.prefix_block_tokens is None


def test_the_seventh_digit_counts(azure_file):
    trace = read_trace(azure_file("2023-11-16 18:17:03.9999999,9,1", "2023-11-16 18:17:04.0000000,9,1"))
    assert [request.arrival_s for request in trace] == [0.0, 1e-7]


@pytest.mark.parametrize(
    "stamp",
    [
        "2024-05-10 00:00:01.500000+00:00",
        "2024-05-10 00:00:01.5Z",
        "2024-05-10T00:00:01.5",
        "2024-05-10 02:00:01.5+02:00",
    ],
)
def test_stamps_may_have_a_zone(azure_file, stamp):
    """The 2024 files add one, and leave the fraction out where it is zero."""
    trace = read_trace(azure_file("2024-05-10 00:00:00+00:00,9,1", f"{stamp},9,1"))
    assert [request.arrival_s for request in trace] == [0.0, 1.5]


def test_columns_are_found_by_name(azure_file):
    (request,) = read_trace(
        azure_file("7,2023-11-16 18:17:03,gpt,9", header="GeneratedTokens, TIMESTAMP, Model, ContextTokens")
    )
    assert (request.prompt_tokens, request.output_tokens) == (9, 7)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2023-11-16 18:17:04,-3,1", ', field "ContextTokens": must be a non-negative whole number, got -3'),
        ("2023-11-16 18:17:04,,1", ", field \"ContextTokens\": must be a non-negative whole number, got ''"),
        ("2023-11-16 18:17:04,9,x", ", field \"GeneratedTokens\": must be a non-negative whole number, got 'x'"),
        (
            "2023-11-16 18:17:04,9,0",
            ', field "GeneratedTokens": must be at least 1 token, got 0 (a failed request? leave it out)',
        ),
        ("2023-11-16 18:17:02,9,1", ', field "TIMESTAMP": must not be earlier than the row above, is by 1 s'),
        ("noon,9,1", ', field "TIMESTAMP": must be a time like "2023-11-16 18:17:03.9799600", got \'noon\''),
        (
            "2023-02-30 18:17:03,9,1",
            ', field "TIMESTAMP": must be a time like "2023-11-16 18:17:03.9799600", got \'2023-02-30 18:17:03\'',
        ),
        ("2023-11-16 18:17:04,9", ": must have 3 cells (TIMESTAMP, ContextTokens, GeneratedTokens), got 2"),
    ],
)
def test_a_wrong_value_is_named_with_its_row_and_field(azure_file, line, problem):
    assert the_error(azure_file("2023-11-16 18:17:03,9,1", line)) == f"FILE, row 2{problem}"


def test_a_header_alone_is_no_trace(azure_file):
    assert the_error(azure_file()) == "FILE: holds no request"


def test_a_stray_quote_spoils_its_own_row_only(azure_file):
    path = azure_file('"2023-11-16 18:17:03,9,1', "2023-11-16 18:17:04,9,1")
    assert the_error(path) == "FILE, row 1: must have 3 cells (TIMESTAMP, ContextTokens, GeneratedTokens), got 1"


def test_a_cell_beyond_what_csv_takes_is_a_spoilt_row(azure_file):
    path = azure_file("2023-11-16 18:17:04,9," + "1" * 200_000)
    assert the_error(path) == "FILE, row 1: must have 3 cells (TIMESTAMP, ContextTokens, GeneratedTokens), got 0"
