"""Say what is in a trace of sessions: how many calls, how long, and how much of a session a cache could save."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workloads.sessions import Call, SessionTrace, walk_calls
from workloads.trace import TraceError


@dataclass(frozen=True, slots=True)
class Spread:
    """How something is spread; zeros where there is nothing of it."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        """Of these values."""
        numbers = np.asarray(values, dtype=np.float64)
        if not len(numbers):
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p90, p99 = (float(value) for value in np.percentile(numbers, (50, 90, 99)))
        return cls(float(numbers.mean()), p50, p90, p99, float(numbers.max()))


@dataclass(frozen=True, slots=True)
class SessionsDescription:
    """What `describe_sessions` found. Calls are all requests, those of sub-agents included."""

    name: str
    num_sessions: int
    num_calls: int
    num_subagents: int
    num_subagents_beside: int  # those that nobody waits for
    num_subagent_calls: int
    calls_per_session: Spread
    prompt_tokens: Spread
    output_tokens: Spread
    prompt_tokens_total: int
    think_time_s: Spread  # of all calls but the first of each session
    block_size: int  # tokens; hits are whole blocks of the engine
    prefix_block_tokens: int | None
    ideal_hit_tokens: int | None  # of each session alone, with a cache that forgets nothing; None: no prefix ids
    ideal_hit_ratio: float | None  # of the prompt tokens


@dataclass(slots=True)
class _SeenIds:
    """The prefix ids of a session's calls so far, as ranges in order that do not touch: long prompts are a few."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def num_seen(self, ids: range) -> int:
        """How many of the first of these ids were seen."""
        at = bisect_right(self.starts, ids.start) - 1
        return max(0, min(self.stops[at], ids.stop) - ids.start) if at >= 0 else 0

    def add(self, ids: range) -> None:
        """These are seen from now on."""
        first, last = bisect_left(self.stops, ids.start), bisect_right(self.starts, ids.stop)
        start, stop = ids.start, ids.stop
        if first < last:  # they meet some that were seen before
            start, stop = min(start, self.starts[first]), max(stop, self.stops[last - 1])
        self.starts[first:last], self.stops[first:last] = [start], [stop]

    def leading(self, ranges: tuple[range, ...]) -> int:
        """How many leading ids were seen. They are seen from now on."""
        num_leading = 0
        for ids in ranges:
            num_seen = self.num_seen(ids)
            num_leading += num_seen
            if num_seen < len(ids):
                break
        for ids in ranges:
            self.add(ids)
        return num_leading


@dataclass(slots=True)
class _Found:
    """What a walk over sessions has found so far."""

    prompts: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    hits: array[int] = field(default_factory=lambda: array("q"))
    thought_s: array[float] = field(default_factory=lambda: array("d"))
    num_calls: array[int] = field(default_factory=lambda: array("q"))  # of each session
    num_subagents: int = 0
    num_beside: int = 0
    num_subagent_calls: int = 0


def describe_sessions(trace: SessionTrace, block_size: int = 16) -> SessionsDescription:
    """Walk over the sessions once and describe them; `block_size` is the engine's, in tokens.

    An ideal hit is a call's longest run of leading prefix ids that earlier calls of its session had in their prompts
    (its own and its sub-agents', in the order in which they stand), in whole blocks of the engine and without the
    last prompt token. Raises `TraceError` for a trace without sessions, and what walking over it raises;
    `ValueError` where `block_size` is below 1.
    """
    if block_size < 1:
        raise ValueError(f"a block holds at least 1 token, got {block_size}")
    found = _Found()
    for session in trace:
        seen = _SeenIds()
        found.num_calls.append(session.num_calls)
        for number, call in enumerate(walk_calls(session.calls)):
            _note(found, call, seen, trace.prefix_block_tokens or 1, block_size)
            if number:
                found.thought_s.append(call.think_time_s)
    if not found.num_calls:
        raise TraceError(f"{trace.name}: holds no session")
    return _described(trace, block_size, found)


def _note(found: _Found, call: Call, seen: _SeenIds, id_tokens: int, block_size: int) -> None:
    found.prompts.append(call.prompt_tokens)
    found.outputs.append(call.output_tokens)
    found.num_subagents += len(call.subagents)
    found.num_beside += sum(not agent.is_awaited for agent in call.subagents)
    found.num_subagent_calls += sum(len(agent.calls) for agent in call.subagents)
    hit_tokens = min(seen.leading(call.prefix_ranges) * id_tokens, call.prompt_tokens - 1)
    found.hits.append(hit_tokens // block_size * block_size)


def _described(trace: SessionTrace, block_size: int, found: _Found) -> SessionsDescription:
    has_prefixes = trace.prefix_block_tokens is not None
    prompt_tokens, hit_tokens = sum(found.prompts), sum(found.hits)
    return SessionsDescription(
        name=trace.name,
        num_sessions=len(found.num_calls),
        num_calls=len(found.prompts),
        num_subagents=found.num_subagents,
        num_subagents_beside=found.num_beside,
        num_subagent_calls=found.num_subagent_calls,
        calls_per_session=Spread.of(found.num_calls),
        prompt_tokens=Spread.of(found.prompts),
        output_tokens=Spread.of(found.outputs),
        prompt_tokens_total=prompt_tokens,
        think_time_s=Spread.of(found.thought_s),
        block_size=block_size,
        prefix_block_tokens=trace.prefix_block_tokens,
        ideal_hit_tokens=hit_tokens if has_prefixes else None,
        ideal_hit_ratio=hit_tokens / prompt_tokens if has_prefixes else None,
    )
