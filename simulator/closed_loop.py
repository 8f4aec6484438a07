"""Closed-loop traffic: a session's next call comes when the one before has ended and its user has thought.

```
a place, or a time to start ──► agent: [think][call ............][think][call ...
                                              │                 ▲
                              Fleet.submit ◄──┘                 └── Arrival.on_left
```

What is due at one time has an order of its own, whatever the order in which it was found out: by session, and within
a session by call. Like any arrival a call that is due comes before the steps that end at the same time. But one that
follows at once (no think time, a place that has become free) comes after them, and after the steps that are planned
then: nobody can be in a plan that is made the moment before he asks.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import repeat
from math import inf, isnan, nan
from typing import NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL, URGENT, Event, EventPriority

from kvcache.errors import InvariantError
from simulator.arrival import Arrival
from simulator.replica import wait_until
from simulator.table import Columns
from workloads import Call, Session, SessionTrace, SubAgent

__all__ = ["ClosedLoop", "SessionRuns"]

AFTER_ALL_ELSE = EventPriority(NORMAL + 1)
"""Of SimPy's events at one time: behind the ends of steps."""

Process = Generator[Event, object, None]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Sessions, and how they come."""

    sessions: SessionTrace
    most_at_once: int | None = None
    """So many are open, or fewer."""
    starts_s: Callable[[], Iterator[float]] = lambda: repeat(0.0)
    """When each starts, in order and in seconds; later where there is no place. Without it, as soon as there is one."""
    max_think_s: float = inf
    """Longer think times are cut to it: the nights of a trace of days."""
    measures_sessions: bool = True
    """False: a session is one request, and says no more than that."""


@dataclass(slots=True)
class _SessionRow:
    """What has happened to a session."""

    name: str | None
    start_s: float = nan
    end_s: float = nan
    num_calls: int = 0
    """That have ended."""
    num_subagents: int = 0
    model_s: float = 0.0
    """Time with a call in flight, its own or a sub-agent's."""
    num_in_flight: int = 0
    _busy_since_s: float = nan

    def call_begins(self, now_s: float) -> None:
        """One more is in flight."""
        if not self.num_in_flight:
            self._busy_since_s = now_s
        self.num_in_flight += 1

    def call_ends(self, now_s: float) -> None:
        """One less is."""
        self.num_calls += 1
        self.num_in_flight -= 1
        if not self.num_in_flight:
            self.model_s += now_s - self._busy_since_s


class _Due(NamedTuple):
    """A call and when it is to be made. They sort by time, then by `order`, which no two share."""

    at_s: float
    order: tuple[int, ...]
    """The session's number, the call's; of a sub-agent: of the call that started it, its own, its call's."""
    call: Call
    row: _SessionRow
    has_ended: Event


class SessionRuns:
    """Sessions that run: who has a place, what is due when, and what has happened to each."""

    def __init__(
        self,
        env: simpy.Environment,
        loop: ClosedLoop,
        submit: Callable[[Arrival], None],
        on_over: Callable[[], None] = lambda: None,
    ) -> None:
        """`submit` is told of each call when it is made; its `on_left` is to be called when it has ended somehow.

        `on_over` is called when the last session has ended.
        """
        self._env = env
        self._loop = loop
        self._submit = submit
        self._num_made = 0
        self._due: list[_Due] = []
        self._rows: list[_SessionRow] = []
        self._num_open = 0
        self._has_place: Event | None = None
        """Awaited by the next session, if it has no place."""
        self._is_empty: Event | None = None
        """Awaited when all have started: no session is open any more."""
        env.process(self._run_all(on_over))

    def _run_all(self, on_over: Callable[[], None]) -> Process:
        yield from self._start_sessions()
        if self._num_open:
            self._is_empty = self._env.event()
            yield self._is_empty
        on_over()

    def _start_sessions(self) -> Process:
        """Give a place to one session after the other; those who come wait for theirs in order."""
        env, most = self._env, self._loop.most_at_once or inf
        is_behind = False
        for number, (session, start_s) in enumerate(zip(self._loop.sessions, self._loop.starts_s(), strict=False)):
            if self._num_open >= most:
                self._has_place = env.event()
                yield self._has_place
                is_behind = True
            self._num_open += 1
            env.process(self._run_session(number, session, max(start_s, env.now) if is_behind else start_s, is_behind))
            if start_s > env.now:
                yield wait_until(env, start_s)  # so that only one is held that has not started
                is_behind = False

    def _run_session(self, number: int, session: Session, start_s: float, follows: bool) -> Process:
        row = _SessionRow(session.name, start_s)
        self._rows.append(row)
        yield from self._run_agent(row, session.calls, start_s, (number,), follows)
        row.end_s = self._env.now
        self._num_open -= 1
        if self._has_place is not None:
            self._has_place.succeed()
            self._has_place = None
        if self._is_empty is not None and not self._num_open:
            self._is_empty.succeed()

    def _run_agent(
        self, row: _SessionRow, calls: tuple[Call, ...], start_s: float, order: tuple[int, ...], follows: bool = True
    ) -> Process:
        """Make the calls of an agent one after the other. Ends when the last has, and every sub-agent.

        `follows`: it starts when something else has ended, not at a time of its own.
        """
        beside: list[Event] = []
        free_s = start_s
        for number, call in enumerate(calls):
            think_s = min(call.think_time_s, self._loop.max_think_s)
            yield self._make_call(row, call, free_s + think_s, (*order, number), follows or number > 0)
            awaited: list[Event] = []
            for agent_number, agent in enumerate(call.subagents):
                started = self._start_subagent(row, agent, (*order, number, agent_number))
                (awaited if agent.is_awaited else beside).append(started)
            if awaited:
                yield self._env.all_of(awaited)
            free_s = self._env.now
        if beside:
            yield self._env.all_of(beside)

    def _start_subagent(self, row: _SessionRow, agent: SubAgent, order: tuple[int, ...]) -> Event:
        """Happens when it has ended."""
        row.num_subagents += 1
        return self._env.process(self._run_agent(row, agent.calls, self._env.now, order))

    def _make_call(self, row: _SessionRow, call: Call, at_s: float, order: tuple[int, ...], follows: bool) -> Event:
        """Note a call that is to be made at `at_s`; happens when it has ended."""
        has_ended = self._env.event()
        heappush(self._due, _Due(at_s, order, call, row, has_ended))
        follows_at_once = follows and at_s <= self._env.now
        at_that_time = wait_until(self._env, at_s, AFTER_ALL_ELSE if follows_at_once else URGENT)
        at_that_time.callbacks.append(partial(self._submit_due, at_s))
        return has_ended

    def _submit_due(self, until_s: float, _event: Event) -> None:
        """Make all calls that are due until then, in their order: the first of them who is woken does it for all."""
        while self._due and self._due[0].at_s <= until_s:
            due = heappop(self._due)
            due.row.call_begins(self._env.now)
            request = due.call.arrive(due.at_s, due.row.name)
            block_tokens = self._loop.sessions.prefix_block_tokens
            arrival = Arrival(request, block_tokens, self._num_made, partial(self._left, due))
            self._num_made += 1
            self._submit(arrival)

    def _left(self, due: _Due) -> None:
        due.row.call_ends(self._env.now)
        due.has_ended.succeed()

    def check(self, num_in_flight: int) -> None:
        """Raise InvariantError if a run that is over has lost a call or a session; so many requests did not end.

        calls-add-up: a call that was made has ended or is in flight.
        sessions-end: a session is open only while a call of it is in flight.
        """
        num_made, num_ended = self._num_made, sum(row.num_calls for row in self._rows)
        if num_made != num_ended + num_in_flight:
            raise InvariantError(
                f"calls-add-up: {num_made} calls were made, {num_ended} ended and {num_in_flight} are in flight"
            )
        waiting = [row.name for row in self._rows if isnan(row.end_s) and not row.num_in_flight]
        if waiting or self._due:
            raise InvariantError(f"sessions-end: {waiting} wait for nothing, {len(self._due)} calls are due")

    def table(self) -> Columns | None:
        """A row per session, in the order in which they came (`simulator.result.Result.sessions`), if they count."""
        if not self._loop.measures_sessions:
            return None
        rows = self._rows
        return {
            "session": np.array([row.name for row in rows], dtype=object),
            "start_s": np.array([row.start_s for row in rows], dtype=np.float64),
            "end_s": np.array([row.end_s for row in rows], dtype=np.float64),
            "num_calls": np.array([row.num_calls for row in rows], dtype=np.int64),
            "num_subagents": np.array([row.num_subagents for row in rows], dtype=np.int64),
            "model_s": np.array([row.model_s for row in rows], dtype=np.float64),
        }
