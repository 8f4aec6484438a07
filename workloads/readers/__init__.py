"""Read request traces in public formats: `read_trace` finds the format in the file's content.

A format is a module with the names of `TraceFormat`; `FORMATS` lists them. Formats of sessions, whose requests wait
for one another, are modules with the names of `SessionFormat`, in `SESSION_FORMATS`, for `read_sessions`.
"""

from __future__ import annotations

import difflib
import gzip
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from workloads.readers import agents, azure, mooncake
from workloads.readers._values import parsed_json, shown
from workloads.sessions import Session, SessionTrace
from workloads.trace import Trace, TraceError, TraceRequest

__all__ = [
    "FORMATS",
    "SESSION_FORMATS",
    "SessionFormat",
    "TraceFormat",
    "holds_sessions",
    "read_sessions",
    "read_trace",
]

_NUM_FIRST_LINES = 5  # a spoilt first row is then a spoilt row, not an unknown format
_MAX_FIELDS_SHOWN = 12
_GZIP_MAGIC = b"\x1f\x8b"


class TraceFormat(Protocol):
    """What a module must offer to read one format."""

    NAME: str
    FIELDS: tuple[str, ...]  # as the file spells them: arrival, prompt tokens, output tokens, then any others
    PREFIX_BLOCK_TOKENS: int | None

    def recognises(self, first_lines: Sequence[str]) -> bool:
        """Whether a file that begins with these lines is of this format."""

    def read_rows(self, lines: Iterable[str], path: str) -> Iterator[TraceRequest]:
        """Requests with arrivals from the first row's, `request_id` the row's number; `TraceError` names `path`."""


class SessionFormat(Protocol):
    """What a module must offer to read one format of sessions."""

    NAME: str
    FIELDS: tuple[str, ...]
    PREFIX_BLOCK_TOKENS: int | None

    def recognises(self, first_lines: Sequence[str]) -> bool:
        """Whether a file that begins with these lines is of this format."""

    def read_sessions(self, lines: Iterable[str], path: str) -> Iterator[Session]:
        """Sessions that share no prefix id unless their prefixes are equal; `TraceError` names `path`."""


FORMATS: tuple[TraceFormat, ...] = (mooncake, azure)
SESSION_FORMATS: tuple[SessionFormat, ...] = (agents,)
_FIELDS_OF = {
    **{fmt.NAME: fmt.FIELDS for fmt in FORMATS},
    **{fmt.NAME: fmt.FIELDS for fmt in SESSION_FORMATS},
}


def read_trace(path: str | Path, *, as_written: bool = False) -> Trace:
    """The trace in a file, plain or gzip-compressed, whatever its name.

    Only the first lines are read here; rows are read and checked each time the trace is walked over, and
    never held together. Rows count from 1 without a header and blank lines. Arrivals count from the first
    row's. With `as_written`, rows that no replay can serve (an empty prompt or output, an arrival before
    the row above) pass as they stand, for `describe` to report.

    Raises `TraceError`, here for a file that is missing, unreadable, empty or of no known format, and
    while walking for a row that is malformed.
    """
    file = str(path)
    first_lines = _first_lines(file)
    fmt = next((fmt for fmt in FORMATS if fmt.recognises(first_lines)), None)
    if fmt is None:
        if _session_format(first_lines) is not None:
            raise TraceError(
                f"{file}: holds sessions, whose requests wait for one another: only `kvplan simulate` replays them,"
                " with --concurrent-sessions or --session-rate"
            )
        raise TraceError(f"{file}: {_why_unknown(first_lines[0])}; {_known_formats()}")
    rows = partial(_rows_of_file, fmt.read_rows, file)
    if not as_written:
        rows = partial(_servable, rows, file, fmt.FIELDS)
    return Trace(name=_trace_name(path), prefix_block_tokens=fmt.PREFIX_BLOCK_TOKENS, rows=rows)


def read_sessions(path: str | Path) -> SessionTrace:
    """The sessions in a file, plain or gzip-compressed, whatever its name; read as they are asked for.

    Raises `TraceError`, here for a file that is missing, unreadable, empty or without sessions, and while walking
    for a row that is malformed.
    """
    file = str(path)
    first_lines = _first_lines(file)
    fmt = _session_format(first_lines)
    if fmt is None:
        if any(fmt.recognises(first_lines) for fmt in FORMATS):
            raise TraceError(f"{file}: holds single requests with times of arrival, not sessions")
        raise TraceError(f"{file}: {_why_unknown(first_lines[0])}; {_known_formats()}")
    rows = partial(_sessions_of_file, fmt.read_sessions, file)
    return SessionTrace(_trace_name(path), fmt.PREFIX_BLOCK_TOKENS, rows)


def holds_sessions(path: str | Path) -> bool:
    """Whether it is `read_sessions` that reads this file. Raises `TraceError` where it cannot be read, or is empty."""
    return _session_format(_first_lines(str(path))) is not None


def _session_format(first_lines: Sequence[str]) -> SessionFormat | None:
    return next((fmt for fmt in SESSION_FORMATS if fmt.recognises(first_lines)), None)


def _first_lines(file: str) -> list[str]:
    first_lines = list(itertools.islice(_lines(file), _NUM_FIRST_LINES))
    if not first_lines:
        raise TraceError(f"{file}: is empty; {_known_formats()}")
    return first_lines


def _sessions_of_file(read_rows: Callable[[Iterable[str], str], Iterator[Session]], path: str) -> Iterator[Session]:
    return read_rows(_lines(path), path)


def _rows_of_file(
    read_rows: Callable[[Iterable[str], str], Iterator[TraceRequest]], path: str
) -> Iterator[TraceRequest]:
    return read_rows(_lines(path), path)


def _servable(rows: Callable[[], Iterator[TraceRequest]], path: str, fields: Sequence[str]) -> Iterator[TraceRequest]:
    """The same requests, up to the first that a replay cannot serve."""
    arrival, prompt, output = fields[:3]
    last_s = 0.0
    row = 0
    for row, request in enumerate(rows(), start=1):
        if request.arrival_s < last_s:
            early_s = last_s - request.arrival_s
            raise TraceError.at(path, row, arrival, f"must not be earlier than the row above, is by {early_s:g} s")
        if request.prompt_tokens < 1:
            raise TraceError.at(path, row, prompt, "must be at least 1 token, got 0")
        if request.output_tokens < 1:
            raise TraceError.at(path, row, output, "must be at least 1 token, got 0 (a failed request? leave it out)")
        last_s = request.arrival_s
        yield request
    if row == 0:
        raise TraceError(f"{path}: holds no request")


def _lines(path: str) -> Iterator[str]:
    """The lines that are not blank, read as they are asked for."""
    try:
        with _open_text(path) as file:
            yield from (line for line in file if not line.isspace())
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file{_nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not text in UTF-8 ({error.reason})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the gzip data are damaged ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None


def _open_text(path: str) -> TextIO:
    with open(path, "rb") as file:
        is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
    if is_gzip:
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return open(path, encoding="utf-8-sig")


def _trace_name(path: str | Path) -> str:
    return Path(path).name.removesuffix(".gz").rsplit(".", 1)[0]


def _nearest_file(path: str) -> str:
    folder = Path(path).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    near = difflib.get_close_matches(Path(path).name, names, n=1)
    return f'; did you mean "{folder / near[0]}"?' if near else ""


def _known_formats() -> str:
    return "known formats: " + ", ".join(f"{name} ({', '.join(fields)})" for name, fields in _FIELDS_OF.items())


def _why_unknown(line: str) -> str:
    """What the first line has in place of a known format's fields."""
    found = _fields_of(line)
    if not found:
        return f"no known format: the first line is neither a JSON object nor names of columns, {shown(line.strip())}"
    known = {field for fields in _FIELDS_OF.values() for field in fields}
    hints = []
    for field in (field for field in found if field not in known):
        near = difflib.get_close_matches(field, sorted(known - set(found)), n=1)
        hints += [f'"{near[0]}" for "{field}"'] if near else []
    shown_fields = [*found[:_MAX_FIELDS_SHOWN], *(["..."] if len(found) > _MAX_FIELDS_SHOWN else [])]
    did_you_mean = f"; did you mean {', '.join(hints)}?" if hints else ""
    return f"no known format has the fields found ({', '.join(shown_fields)}){did_you_mean}"


def _fields_of(line: str) -> list[str]:
    try:
        parsed = parsed_json(line)
    except ValueError:
        return [] if line.lstrip().startswith(("{", "[")) else [name.strip() for name in line.split(",")]
    return list(parsed) if isinstance(parsed, dict) else []
