"""Closed-loop traffic: sessions whose calls wait for one another, so that arrivals depend on the server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from workloads.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a session.

    It is made `think_time_s` after the call before it has ended, and the sub-agents which that call started and
    its agent waits for. An agent's first call counts from its start.
    """

    request_id: str
    prompt_tokens: int  # >= 1
    output_tokens: int  # >= 1
    think_time_s: float = 0.0
    prefix_ranges: tuple[range, ...] = ()  # a request's prefix ids, see `TraceRequest`, in runs: prompts may be long
    priority: int = 0
    subagents: tuple[SubAgent, ...] = ()  # who start when the call has ended, side by side

    @property
    def num_calls(self) -> int:
        """This one, and those of the sub-agents that it starts."""
        return 1 + sum(agent.num_calls for agent in self.subagents)

    def arrive(self, at_s: float, session: str | None) -> TraceRequest:
        """The call as a request that arrives at this time: only now are its prefix ids written out."""
        return TraceRequest(
            request_id=self.request_id,
            arrival_s=at_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            prefix_ids=tuple(itertools.chain.from_iterable(self.prefix_ranges)),
            session=session,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True)
class SubAgent:
    """Calls that another agent's call has started.

    ```
    agent     [call]......................[next call]      think time: from the end of the one it waits for
    waited for      .[call]..[call].......
    beside          .[call]..[call]..[call]..[call]        the session ends when all have
    ```
    """

    calls: tuple[Call, ...]  # at least one
    is_awaited: bool = True  # by the next call of the agent that started it

    @property
    def num_calls(self) -> int:
        """Of it, and of its own sub-agents."""
        return sum(call.num_calls for call in self.calls)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation, or an agent at work: calls in order."""

    name: str | None  # None: its requests belong to no session
    calls: tuple[Call, ...]  # at least one

    @property
    def num_calls(self) -> int:
        """Of the session and all its sub-agents."""
        return sum(call.num_calls for call in self.calls)


@dataclass(frozen=True)
class SessionTrace:
    """A named sequence of sessions that streams as a `Trace` does: each `rows()` starts again from the first.

    It does not say when sessions start. Whoever replays it holds the sessions that have not ended, and no others.
    """

    name: str
    prefix_block_tokens: int | None  # tokens per prefix id; None: the sessions say nothing about prefixes
    rows: Callable[[], Iterator[Session]]
    num_calls: int | None = None  # of all sessions, where it is known without reading

    def __iter__(self) -> Iterator[Session]:
        return self.rows()

    def count_calls(self) -> int:
        """Calls of all sessions. Walks over them where it is not known."""
        return sum(session.num_calls for session in self) if self.num_calls is None else self.num_calls


def first_sessions(trace: SessionTrace, num_sessions: int) -> SessionTrace:
    """The first so many sessions. Raises `ValueError` where that is negative."""
    if num_sessions < 0:
        raise ValueError(f"num_sessions must be at least 0, got {num_sessions}")
    return replace(trace, rows=partial(_first, trace, num_sessions), num_calls=None)


def _first(trace: SessionTrace, num_sessions: int) -> Iterator[Session]:
    return itertools.islice(trace.rows(), num_sessions)


def one_call_each(trace: Trace) -> SessionTrace:
    """Every request of a trace as a session of its own: what keeps N of them open keeps N requests in flight."""
    return SessionTrace(trace.name, trace.prefix_block_tokens, partial(_one_call_each, trace), trace.num_requests)


def _one_call_each(trace: Trace) -> Iterator[Session]:
    for row in trace:
        call = Call(
            request_id=row.request_id,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            prefix_ranges=tuple(as_ranges(row.prefix_ids)),
            priority=row.priority,
        )
        yield Session(row.session, (call,))


def as_ranges(ids: Sequence[int]) -> Iterator[range]:
    """The same ids in the same order, neighbours that count up as one range."""
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield range(ids[start], ids[end - 1] + 1)
            start = end


def walk_calls(calls: Iterable[Call]) -> Iterator[Call]:
    """These calls, each before those of the sub-agents that it started."""
    for call in calls:
        yield call
        for agent in call.subagents:
            yield from walk_calls(agent.calls)
