"""Azure LLM inference CSV (2023): `TIMESTAMP,ContextTokens,GeneratedTokens`, nothing about prefixes.

Stamps have 7 fractional digits, one more than Python's `%f` takes; the 2024 files add "+00:00" and leave
the fraction out where it is zero. Columns are found by name.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from workloads.readers._values import shown, whole_number
from workloads.trace import TraceError, TraceRequest

NAME = "Azure CSV"
FIELDS: tuple[str, ...] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PREFIX_BLOCK_TOKENS: int | None = None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 10**9
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def recognises(first_lines: Sequence[str]) -> bool:
    """Whether the first line is a header with the format's columns."""
    return set(_split(first_lines[0])) >= set(FIELDS)


def read_rows(lines: Iterable[str], path: str) -> Iterator[TraceRequest]:
    """The rows as requests, arrivals in seconds from the first row's. `TraceError` names a malformed row."""
    reader = iter(lines)
    header = _split(next(reader))
    at_stamp, at_prompt, at_output = (header.index(field) for field in FIELDS)
    start_ns: int | None = None
    for row, line in enumerate(reader, start=1):
        cells = _split(line)
        if len(cells) != len(header):
            raise TraceError(
                f"{path}, row {row:,}: must have {len(header)} cells ({', '.join(header)}), got {len(cells)}"
            )
        stamp_ns = _stamp_ns(cells[at_stamp], path, row)
        start_ns = stamp_ns if start_ns is None else start_ns
        yield TraceRequest(
            request_id=str(row),
            arrival_s=(stamp_ns - start_ns) / _NS_PER_S,
            prompt_tokens=_tokens(cells[at_prompt], path, row, FIELDS[1]),
            output_tokens=_tokens(cells[at_output], path, row, FIELDS[2]),
        )


def _split(line: str) -> list[str]:
    # One line at a time: a stray quote would make csv join lines, and errors would name the wrong row.
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:  # a cell of 128 KiB
        return []


def _stamp_ns(text: str, path: str, row: int) -> int:
    """Nanoseconds since 1970, exact: as seconds in a float a stamp of today resolves only 0.2 microseconds."""
    match = _STAMP.fullmatch(text)
    whole, fraction, zone = match.groups() if match else ("", "", "")
    try:
        moment = datetime.fromisoformat(whole + (zone or "Z"))
    except ValueError:  # no time at all, or one that no calendar has
        problem = f'must be a time like "2023-11-16 18:17:03.9799600", got {shown(text)}'
        raise TraceError.at(path, row, FIELDS[0], problem) from None
    return int((moment - _EPOCH).total_seconds()) * _NS_PER_S + int((fraction or "").ljust(9, "0"))


def _tokens(text: str, path: str, row: int, field: str) -> int:
    try:
        value: object = int(text)
    except ValueError:
        value = text
    return whole_number(value, path, row, field)
