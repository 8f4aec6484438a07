"""Mooncake JSONL: milliseconds, and one id per 512 tokens of which the last may be partial."""

import json

import pytest

from workloads import TraceError, TraceRequest, read_trace


def the_error(path):
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    return str(caught.value).replace(str(path), "FILE")


def test_a_row_becomes_a_request(mooncake_file):
    """Times in seconds from the first row, and the row's number as the request's id."""
    trace = read_trace(mooncake_file((3000, 1024, 7, [4, 5]), (4500, 512, 1, [4])))
    assert list(trace) == [TraceRequest("1", 0.0, 1024, 7, (4, 5)), TraceRequest("2", 1.5, 512, 1, (4,))]
    assert (trace.name, trace.prefix_block_tokens) == ("trace", 512)


@pytest.mark.parametrize(("prompt_tokens", "kept"), [(1023, (4,)), (1024, (4, 5)), (513, (4,)), (100, ())])
def test_a_partial_last_block_is_never_credited(mooncake_file, prompt_tokens, kept):
    ids = [4, 5][: -(-prompt_tokens // 512)]
    (request,) = read_trace(mooncake_file((0, prompt_tokens, 1, ids)))
    assert request.prefix_ids == kept


def test_ids_must_cover_the_prompt(mooncake_file):
    path = mooncake_file((0, 512, 1, [0]), (0, 6758, 500, [0, 1, 2]))
    assert the_error(path) == (
        'FILE, row 2, field "hash_ids": must hold one id per 512 tokens, 14 for an input_length of 6,758, got 3'
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((0, -3, 1, []), '"input_length": must be a non-negative whole number, got -3'),
        ((0, 2.5, 1, [1]), '"input_length": must be a non-negative whole number, got 2.5'),
        ((0, True, 1, [1]), '"input_length": must be a non-negative whole number, got True'),
        ((0, 10**12, 1, [1]), '"input_length": must be below 1,000,000,000 tokens, got 1000000000000'),
        ((0, 9, "7", [1]), "\"output_length\": must be a non-negative whole number, got '7'"),
        ((0, 9, None, [1]), '"output_length": must be a non-negative whole number, got None'),
        ((-1, 9, 1, [1]), '"timestamp": must be a non-negative number of milliseconds, got -1'),
        ((float("nan"), 9, 1, [1]), '"timestamp": must be a non-negative number of milliseconds, got nan'),
        (("12:00", 9, 1, [1]), "\"timestamp\": must be a non-negative number of milliseconds, got '12:00'"),
        ((0, 9, 1, 4), '"hash_ids": must be a list of whole numbers, got 4'),
        ((0, 9, 1, ["a"]), "\"hash_ids\": must be a list of whole numbers, got ['a']"),
        ((0, 0, 1, []), '"input_length": must be at least 1 token, got 0'),
        ((0, 9, 0, [1]), '"output_length": must be at least 1 token, got 0 (a failed request? leave it out)'),
    ],
)
def test_a_wrong_value_is_named_with_its_row_and_field(mooncake_file, row, problem):
    path = mooncake_file((0, 9, 1, [1]), row)
    assert the_error(path) == f"FILE, row 2, field {problem}"


def test_a_whole_number_written_as_a_float_is_one(mooncake_file):
    (request,) = read_trace(mooncake_file((0, 9.0, 1.0, [1])))
    assert (request.prompt_tokens, request.output_tokens) == (9, 1)


def test_a_missing_field_is_named(mooncake_file):
    path = mooncake_file((0, 9, 1, [1]), json.dumps({"timestamp": 0, "input_length": 9, "hash_ids": [1]}))
    assert the_error(path) == (
        'FILE, row 2, field "output_length": is missing (found: timestamp, input_length, hash_ids)'
    )


def test_a_spoilt_line_is_a_spoilt_row(mooncake_file):
    path = mooncake_file((0, 9, 1, [1]), '{"timestamp": 3')
    assert the_error(path) == "FILE, row 2: is not valid JSON (Expecting ',' delimiter)"


def test_a_spoilt_first_line_is_a_spoilt_row_too(mooncake_file):
    """The format is known from the lines below."""
    path = mooncake_file('{"timestamp": 3', (0, 9, 1, [1]))
    assert the_error(path) == "FILE, row 1: is not valid JSON (Expecting ',' delimiter)"


def test_a_line_that_is_no_object_is_refused(mooncake_file):
    path = mooncake_file((0, 9, 1, [1]), "[1, 2]")
    assert the_error(path) == "FILE, row 2: must be a JSON object, got [1, 2]"


def test_time_does_not_run_backwards(mooncake_file):
    path = mooncake_file((3000, 9, 1, [1]), (2500, 9, 1, [1]))
    assert the_error(path) == 'FILE, row 2, field "timestamp": must not be earlier than the row above, is by 0.5 s'


def test_blank_lines_are_no_rows(mooncake_file):
    path = mooncake_file((0, 9, 1, [1]), "", "  ", (0, -1, 1, []))
    assert the_error(path).startswith("FILE, row 2, ")
