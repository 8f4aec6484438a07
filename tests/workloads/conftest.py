"""Traces small enough to reckon by hand."""

import json

import pytest

from workloads import Trace, TraceRequest


@pytest.fixture
def make_trace():
    """Build a trace from requests that state only what the story is about: (arrival, prompt, ids)."""

    def make(*requests, block=16, name="hand-made"):
        rows = [
            TraceRequest(str(row), arrival_s, prompt_tokens, 1, tuple(ids))
            for row, (arrival_s, prompt_tokens, ids) in enumerate(requests, start=1)
        ]
        return Trace(name, block, lambda: iter(rows), len(rows))

    return make


@pytest.fixture
def mooncake_file(tmp_path):
    """Write Mooncake rows; a row is (timestamp in ms, input_length, output_length, hash_ids) or a raw line."""

    def write(*rows, name="trace.jsonl"):
        fields = ("timestamp", "input_length", "output_length", "hash_ids")
        lines = [row if isinstance(row, str) else json.dumps(dict(zip(fields, row, strict=True))) for row in rows]
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write


@pytest.fixture
def azure_file(tmp_path):
    """Write lines under the Azure header."""

    def write(*lines, header="TIMESTAMP,ContextTokens,GeneratedTokens"):
        path = tmp_path / "trace.csv"
        path.write_text("".join(f"{line}\n" for line in (header, *lines)))
        return path

    return write
