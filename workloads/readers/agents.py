"""Coding-agent sessions, JSONL (WEKA's kv-cache-tester, packed): one session per line, its requests in order.

Prefix ids are hashes of 64-token blocks, written as [first, count, first, count, ...]: `floor(in / 64)` of them, so
a prompt's rest has none. They are local to a session, which shares them with its sub-agents: here they are numbered
on from one session to the next, so that no two sessions meet.

What the fields mean was read off the public file (710 sessions, 49,334 calls; docs/fleets.md):

- `type` is "n" or "s" for a call (whole, or streamed), "subagent" for requests of a sub-agent's own.
- A call's `t` is when it started, in seconds from its agent's start, and `think_time` counts from the end of the last
  call whose `api_time` is known. Where that of the call before is missing, it may exceed the time since that call
  *started*: then this time is all that is known, and taken.
- A sub-agent's `t` is when it *ended*, and its agent's next call came after that: its `think_time` covers the
  sub-agent, which is subtracted. With the status "async_launched" `t` is when it started, and nobody waits for it.
- A call that generated nothing (`out` is 0) had its prompt computed all the same: it counts as one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from workloads.readers._values import has_fields, json_object, shown, whole_number
from workloads.sessions import Call, Session, SubAgent
from workloads.trace import TraceError

NAME = "coding-agent sessions"
FIELDS: tuple[str, ...] = ("id", "block_size", "hash_id_scope", "requests")
PREFIX_BLOCK_TOKENS: int | None = 64

_BLOCK_TOKENS = 64
_CALL_TYPES = ("n", "s")
_SUBAGENT = "subagent"
_BESIDE = "async_launched"
_MS_PER_S = 1000
_MAX_S = 1e9
_MAX_ID = 1 << 40

_Record = Mapping[str, object]


def recognises(first_lines: Sequence[str]) -> bool:
    """Whether one of the lines is an object with the format's fields."""
    return has_fields(first_lines, FIELDS)


def read_sessions(lines: Iterable[str], path: str) -> Iterator[Session]:
    """The rows as sessions. `TraceError` names a malformed row, and in it the field with the requests' index from 0."""
    first_id = 0
    for row, line in enumerate(lines, start=1):
        reader = _RowReader(path, row, first_id)
        yield reader.session(line)
        first_id = reader.next_id


@dataclass(slots=True)
class _Before:
    """What an agent's next call comes after."""

    start_s: float = 0.0  # of the call before
    end_s: float = 0.0  # of it, where known; else its start
    latest_s: float = 0.0  # of what is known to have happened: that start, or the end of a sub-agent waited for


@dataclass(slots=True)
class _RowReader:
    """Reads one row."""

    path: str
    row: int
    first_id: int  # what the session's ids count from
    next_id: int = field(init=False)
    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.next_id = self.first_id

    def session(self, line: str) -> Session:
        """The session of this line."""
        record = json_object(line, self.path, self.row)
        self.name = self._text(record, "id", "id")
        for name, only in (("block_size", _BLOCK_TOKENS), ("hash_id_scope", "local")):
            value = self._value(record, name, name)
            if value != only or isinstance(value, bool):
                raise self._error(name, f"must be {only!r}, got {shown(value)}")
        return Session(self.name, self._calls(record, "requests", f"{self.name}/"))

    def _calls(self, record: _Record, where: str, prefix: str) -> tuple[Call, ...]:
        """An agent's calls, each with the sub-agents behind it; `prefix` begins their request ids."""
        entries = self._value(record, "requests", where)
        if not isinstance(entries, list) or not entries:
            raise self._error(where, f"must be a list of at least one request, got {shown(entries)}")
        calls: list[Call] = []
        before = _Before()
        for index, entry in enumerate(entries):
            at = f"{where}[{index}]"
            if not isinstance(entry, dict):
                raise self._error(at, f"must be a JSON object, got {shown(entry)}")
            kind = self._value(entry, "type", f"{at}.type")
            if kind == _SUBAGENT and calls:
                agent = self._subagent(entry, at, f"{calls[-1].request_id}.{len(calls[-1].subagents) + 1}/", before)
                calls[-1] = replace(calls[-1], subagents=(*calls[-1].subagents, agent))
            elif kind in _CALL_TYPES:
                calls.append(self._call(entry, at, f"{prefix}{len(calls) + 1}", before))
            elif kind == _SUBAGENT:
                raise self._error(f"{at}.type", "must be a call: nobody has started this sub-agent")
            else:
                raise self._error(f"{at}.type", f'must be "n", "s" or "subagent", got {shown(kind)}')
        return tuple(calls)

    def _call(self, entry: _Record, at: str, request_id: str, before: _Before) -> Call:
        start_s = self._seconds(entry, at, "t")
        if start_s < before.start_s:
            early_s = before.start_s - start_s
            raise self._error(f"{at}.t", f"must not be earlier than the call before, is by {early_s:g} s")
        prompt_tokens = self._tokens(entry, at, "in")
        if prompt_tokens < 1:
            raise self._error(f"{at}.in", "must be at least 1 token, got 0")
        since_s = max(0.0, start_s - before.latest_s)
        stated_s = self._seconds(entry, at, "think_time", default=since_s)
        duration_s = self._seconds(entry, at, "api_time", default=0.0)
        before.start_s = before.latest_s = start_s
        before.end_s = start_s + duration_s
        return Call(
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            output_tokens=max(1, self._tokens(entry, at, "out")),
            think_time_s=min(stated_s, since_s),
            prefix_ranges=self._ranges(entry, f"{at}.hash_rle", prompt_tokens),
        )

    def _subagent(self, entry: _Record, at: str, prefix: str, before: _Before) -> SubAgent:
        calls = self._calls(entry, f"{at}.requests", prefix)
        at_s = self._seconds(entry, at, "t")
        is_awaited = self._text(entry, "status", f"{at}.status") != _BESIDE
        start_s = at_s
        if is_awaited:
            lasted_s = self._seconds(entry, at, "duration_ms", default=_MS_PER_S * at_s) / _MS_PER_S
            start_s = at_s - lasted_s
            before.latest_s = max(before.latest_s, at_s)
        first = replace(calls[0], think_time_s=max(0.0, start_s - before.end_s) + calls[0].think_time_s)
        return SubAgent((first, *calls[1:]), is_awaited)

    def _ranges(self, entry: _Record, where: str, prompt_tokens: int) -> tuple[range, ...]:
        numbers = self._value(entry, "hash_rle", where)
        if not isinstance(numbers, list) or not set(map(type, numbers)) <= {int} or len(numbers) % 2:
            raise self._error(where, f"must be whole numbers, [first, count, first, count, ...], got {shown(numbers)}")
        if numbers and not 0 <= min(numbers) <= max(numbers) < _MAX_ID:
            raise self._error(where, f"must hold numbers from 0 to 2**40, got {min(numbers)} and {max(numbers)}")
        num_ids, num_blocks = sum(numbers[1::2]), prompt_tokens // _BLOCK_TOKENS
        if num_ids != num_blocks:
            size = f"one per whole block of {_BLOCK_TOKENS} tokens, {num_blocks:,} for {prompt_tokens:,} in"
            raise self._error(where, f"must count {size}, got {num_ids:,}")
        ranges = []
        for first, count in zip(numbers[::2], numbers[1::2], strict=True):
            start = self.first_id + first
            ranges.append(range(start, start + count))
            self.next_id = max(self.next_id, start + count)
        return tuple(ranges)

    def _tokens(self, entry: _Record, at: str, name: str) -> int:
        return whole_number(self._value(entry, name, f"{at}.{name}"), self.path, self.row, f"{at}.{name}")

    def _seconds(self, entry: _Record, at: str, name: str, default: float | None = None) -> float:
        """A time; missing or null, it is `default`, if there is one."""
        value = entry.get(name, default) if default is not None else self._value(entry, name, f"{at}.{name}")
        value = default if value is None else value
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_S:
            return float(value)
        raise self._error(f"{at}.{name}", f"must be a non-negative number, got {shown(value)}")

    def _text(self, record: _Record, name: str, where: str) -> str:
        value = self._value(record, name, where)
        if isinstance(value, str) and value:
            return value
        raise self._error(where, f"must be a text, got {shown(value)}")

    def _value(self, record: _Record, name: str, where: str) -> object:
        if name not in record:
            raise self._error(where, f"is missing (found: {', '.join(record) or 'no field'})")
        return record[name]

    def _error(self, where: str, problem: str) -> TraceError:
        return TraceError.at(self.path, self.row, where, problem)
