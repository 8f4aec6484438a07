"""Values out of a file's text, or the error that says what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from workloads.trace import TraceError

_TOKENS_LIMIT = 10**9  # no request is near it; beyond, a stray number would only fail later and less clearly
_MAX_SHOWN = 40  # characters


def parsed_json(line: str) -> object:
    """What a line of JSON says. Raises `ValueError` with the reason where it is none."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from None
    except RecursionError:
        raise ValueError("too many brackets inside one another") from None


def whole_number(value: object, path: str, row: int, field: str) -> int:
    """A count of tokens. Raises `TraceError` unless `value` is a whole number of at least 0."""
    if type(value) is int and 0 <= value < _TOKENS_LIMIT:
        return value
    # Tables with gaps write whole numbers as 12.0.
    if isinstance(value, float) and value.is_integer() and 0 <= value < _TOKENS_LIMIT:
        return int(value)
    if isinstance(value, int | float) and _TOKENS_LIMIT <= value:
        raise TraceError.at(path, row, field, f"must be below {_TOKENS_LIMIT:,} tokens, got {shown(value)}")
    raise TraceError.at(path, row, field, f"must be a non-negative whole number, got {shown(value)}")


def shown(value: object) -> str:
    """A value in an error, cut to a length that keeps the message one line."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def has_fields(first_lines: Sequence[str], fields: Sequence[str]) -> bool:
    """Whether one of the lines is a JSON object with these fields."""
    return any(_is_object_with(line, fields) for line in first_lines)


def _is_object_with(line: str, fields: Sequence[str]) -> bool:
    try:
        record = parsed_json(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.keys() >= set(fields)


def json_object(line: str, path: str, row: int) -> dict[str, object]:
    """The JSON object in a line. Raises `TraceError` where it is none."""
    try:
        record = parsed_json(line)
    except ValueError as error:
        raise TraceError(f"{path}, row {row:,}: is not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise TraceError(f"{path}, row {row:,}: must be a JSON object, got {shown(record)}")
    return record
