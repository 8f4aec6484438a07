"""A trace file is known by its content, streams, and is refused in one line."""

import gzip
import itertools
import pickle

import pytest

from workloads import TraceError, describe, read_trace

MOONCAKE = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,9,1\n"
KNOWN = (
    "known formats: Mooncake JSONL (timestamp, input_length, output_length, hash_ids), "
    "Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens), "
    "coding-agent sessions (id, block_size, hash_id_scope, requests)"
)


def the_error(path):
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "FILE")


@pytest.mark.parametrize(("text", "block"), [(MOONCAKE, 512), (AZURE, None), ("\ufeff" + AZURE, None)])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a", "a.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_content_tells_the_format_not_the_name(tmp_path, text, block, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(text.encode()))
    trace = read_trace(path)
    assert (trace.name, trace.prefix_block_tokens, [request.prompt_tokens for request in trace]) == ("a", block, [9])


def test_each_walk_starts_again(tmp_path):
    (path := tmp_path / "a").write_text(MOONCAKE * 3)
    trace = read_trace(path)
    assert list(trace) == list(trace)


@pytest.mark.parametrize("as_written", [True, False])
def test_a_trace_can_be_sent_to_another_process(tmp_path, as_written):
    (path := tmp_path / "a").write_text(MOONCAKE * 3)
    trace = read_trace(path, as_written=as_written)
    assert list(pickle.loads(pickle.dumps(trace))) == list(trace)


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    """A spoilt row far down spoils nothing before it."""
    (path := tmp_path / "a").write_text(MOONCAKE * 100 + "spoilt\n")
    assert len(list(itertools.islice(read_trace(path), 100))) == 100
    assert the_error(path) == "FILE, row 101: is not valid JSON (Expecting value)"


def test_a_file_that_is_not_there_suggests_its_neighbour(tmp_path):
    (tmp_path / "conversation.jsonl").touch()
    path = tmp_path / "conversaton.jsonl"
    assert the_error(path) == f'FILE: no such file; did you mean "{tmp_path / "conversation.jsonl"}"?'


def test_a_file_in_a_folder_that_is_not_there(tmp_path):
    assert the_error(tmp_path / "nowhere" / "a.csv") == "FILE: no such file"


def test_a_folder_is_no_trace(tmp_path):
    assert the_error(tmp_path) == "FILE: cannot be read (Is a directory)"


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_an_empty_file_is_no_trace(tmp_path, text):
    (path := tmp_path / "a").write_text(text)
    assert the_error(path) == f"FILE: is empty; {KNOWN}"


def test_an_unknown_format_lists_what_was_found_and_what_is_known(tmp_path):
    (path := tmp_path / "a").write_text("when,how many\n1,2\n")
    assert the_error(path) == f"FILE: no known format has the fields found (when, how many); {KNOWN}"


def test_a_misspelt_field_gets_the_nearest_name(tmp_path):
    (path := tmp_path / "a").write_text(MOONCAKE.replace("input_length", "input_lenght"))
    assert the_error(path) == (
        "FILE: no known format has the fields found (timestamp, input_lenght, output_length, hash_ids); "
        f'did you mean "input_length" for "input_lenght"?; {KNOWN}'
    )


def test_a_misspelt_column_gets_the_nearest_name(tmp_path):
    (path := tmp_path / "a").write_text(AZURE.replace("ContextTokens", "ContextToken"))
    assert 'did you mean "ContextTokens" for "ContextToken"?' in the_error(path)


def test_a_table_of_many_columns_is_shown_in_part(tmp_path):
    (path := tmp_path / "a").write_text(",".join(f"c{i}" for i in range(100)))
    assert "(c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, ...)" in the_error(path)


@pytest.mark.parametrize("text", ["[1, 2]\n", '{"timestamp": \n', "[" * 200_000])
def test_what_is_neither_an_object_nor_a_header_is_no_trace(tmp_path, text):
    (path := tmp_path / "a").write_text(text)
    assert "the first line is neither a JSON object nor names of columns" in the_error(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (path := tmp_path / "a").write_bytes(b"\xff\xfe\x00")
    assert the_error(path) == "FILE: is not text in UTF-8 (invalid start byte)"


def test_a_cut_off_archive_is_refused(tmp_path):
    (path := tmp_path / "a.gz").write_bytes(gzip.compress(MOONCAKE.encode() * 100)[:-20])
    assert the_error(path).startswith("FILE: the gzip data are damaged (")


def test_a_spoilt_archive_is_refused(tmp_path):
    (path := tmp_path / "a.gz").write_bytes(b"\x1f\x8b" + b"\x00" * 50)
    assert the_error(path).startswith("FILE: the gzip data are damaged (")


def test_rows_as_written_pass_what_no_replay_can_serve(tmp_path):
    """So that a description can count what a replay would refuse."""
    (path := tmp_path / "a").write_text(
        AZURE + "2023-11-16 18:17:02.9799600,0,5\n2023-11-16 18:17:05,8,0\n2023-11-16 18:17:05,8,0\n"
    )
    found = describe(read_trace(path, as_written=True))
    assert found.warnings == (
        "Arrivals run backwards at 1 of 4 requests: sort the trace.",
        "No prompt tokens in 1 of 4 requests: they were never served, leave them out.",
        "No output tokens in 2 of 4 requests: they were never served, leave them out.",
        "No request has prefix ids: a prefix cache finds nothing to reuse.",
    )
