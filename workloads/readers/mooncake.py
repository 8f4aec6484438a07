"""Mooncake JSONL (FAST'25): one object per line, `timestamp` in ms, one hash id per 512 prompt tokens.

An id names the whole prefix up to its block's end and is global to the file. There are
ceil(input_length / 512) ids: the last one of a prompt may cover a partial block. No engine can reuse
that, so only the ids of whole blocks are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from workloads.readers._values import has_fields, json_object, shown, whole_number
from workloads.trace import TraceError, TraceRequest

NAME = "Mooncake JSONL"
FIELDS: tuple[str, ...] = ("timestamp", "input_length", "output_length", "hash_ids")
PREFIX_BLOCK_TOKENS: int | None = 512

_BLOCK_TOKENS = 512
_MS_PER_S = 1000
_MAX_TIMESTAMP_MS = 1e15  # far beyond any clock, still exact to the millisecond in a float


def recognises(first_lines: Sequence[str]) -> bool:
    """Whether one of the lines is an object with the format's fields."""
    return has_fields(first_lines, FIELDS)


def read_rows(lines: Iterable[str], path: str) -> Iterator[TraceRequest]:
    """The rows as requests, arrivals in seconds from the first row's. `TraceError` names a malformed row."""
    start_ms: float | None = None
    for row, line in enumerate(lines, start=1):
        record = _record(line, path, row)
        timestamp_ms = _timestamp_ms(record["timestamp"], path, row)
        start_ms = timestamp_ms if start_ms is None else start_ms
        prompt_tokens = whole_number(record["input_length"], path, row, "input_length")
        yield TraceRequest(
            request_id=str(row),
            arrival_s=(timestamp_ms - start_ms) / _MS_PER_S,
            prompt_tokens=prompt_tokens,
            output_tokens=whole_number(record["output_length"], path, row, "output_length"),
            prefix_ids=_whole_block_ids(record["hash_ids"], prompt_tokens, path, row),
        )


def _record(line: str, path: str, row: int) -> dict[str, object]:
    record = json_object(line, path, row)
    for field in FIELDS:
        if field not in record:
            raise TraceError.at(path, row, field, f"is missing (found: {', '.join(record) or 'no field'})")
    return record


def _timestamp_ms(value: object, path: str, row: int) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_TIMESTAMP_MS:
        return value
    raise TraceError.at(path, row, "timestamp", f"must be a non-negative number of milliseconds, got {shown(value)}")


def _whole_block_ids(hash_ids: object, prompt_tokens: int, path: str, row: int) -> tuple[int, ...]:
    if not isinstance(hash_ids, list) or not set(map(type, hash_ids)) <= {int}:
        raise TraceError.at(path, row, "hash_ids", f"must be a list of whole numbers, got {shown(hash_ids)}")
    num_blocks = -(-prompt_tokens // _BLOCK_TOKENS)
    if len(hash_ids) != num_blocks:
        problem = (
            f"must hold one id per {_BLOCK_TOKENS} tokens, {num_blocks:,} for an input_length "
            f"of {prompt_tokens:,}, got {len(hash_ids):,}"
        )
        raise TraceError.at(path, row, "hash_ids", problem)
    return tuple(hash_ids[: prompt_tokens // _BLOCK_TOKENS])
