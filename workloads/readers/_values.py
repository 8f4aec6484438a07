"""Values out of a file's text, or the error that says what is wrong with them."""

from __future__ import annotations

import json

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
