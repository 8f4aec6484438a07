"""The lives of a replica: it runs while it is wanted and not broken.

```
          start               cold start over              drain                  nobody is left
  OFF ─────────────► BOOTING ────────────────► UP ─────────────────► DRAINING ──────────────────► OFF
                        │      fail            │       fail              │
                        └──────────────────────┴─────► FAILED ◄──────────┘     repair: boots if wanted, else OFF
```
"""

from collections.abc import Callable, Generator, Iterator
from enum import StrEnum

import simpy
from simpy.events import Event, Process

from simulator.replica import STOPPED, wait_until

__all__ = ["PAID", "UP", "Lives", "Spans", "State"]


class State(StrEnum):
    """What a replica is at a time."""

    BOOTING = "booting"
    """It is there and takes no requests yet."""
    UP = "up"
    """It takes requests."""
    DRAINING = "draining"
    """It takes no more, and serves those that it has."""
    FAILED = "failed"
    OFF = "off"
    """Nobody wants it."""


UP = frozenset({State.UP})
PAID = frozenset({State.BOOTING, State.UP, State.DRAINING})
"""The states in which a server is there."""

Spans = Iterator[tuple[State, float, float]]


class Lives:
    """Starts a server whenever it is wanted and not broken, one life after the other, and keeps what it was when."""

    def __init__(
        self,
        env: simpy.Environment,
        serve: Callable[[], Generator[Event, object, object]],
        is_empty: Callable[[], bool],
        on_change: Callable[[State], None],
        cold_start_s: float = 0.0,
    ) -> None:
        """`serve()` serves until it is interrupted. `on_change` is told of each state as it begins.

        Only who is empty is off at once when drained; the others are once `emptied` says so.
        """
        self.state = State.OFF
        self.is_wanted = False
        self.changes: list[tuple[float, State]] = []
        """When each state began."""
        self._env = env
        self._serve = serve
        self._is_empty = is_empty
        self._on_change = on_change
        self._cold_start_s = cold_start_s
        self._num_faults = 0
        self._process: Process | None = None

    @property
    def is_on(self) -> bool:
        """Whether a server is there, and paid for."""
        return self.state in PAID

    @property
    def is_broken(self) -> bool:
        """Whether it has failed and is not repaired, wanted or not."""
        return self._num_faults > 0

    @property
    def started_s(self) -> float:
        """When it last began to boot or was up; 0 before its first life."""
        starts_s = [began_s for began_s, state in self.changes if state in (State.BOOTING, State.UP)]
        return max(starts_s, default=0.0)

    def start(self, *, is_warm: bool = False) -> None:
        """It is wanted from now on; only who is warm is up at once."""
        self.is_wanted = True
        self._begin(0.0 if is_warm else self._cold_start_s)

    def drain(self) -> None:
        """It is not wanted any more: who is here is served first."""
        self.is_wanted = False
        if self.state is State.UP and not self._is_empty():
            self._enter(State.DRAINING)
        elif self.state in (State.UP, State.BOOTING):
            self._end(State.OFF)

    def emptied(self) -> None:
        """Nobody is here now."""
        if self.state is State.DRAINING:
            # Its own process says so, and no process interrupts itself.
            wait_until(self._env, self._env.now).callbacks.append(self._end_if_drained)

    def _end_if_drained(self, _: Event) -> None:
        if self.state is State.DRAINING and self._is_empty():
            self._end(State.OFF)

    def fail(self) -> None:
        """It breaks: whatever runs there is lost. Not for its own process to call."""
        self._num_faults += 1
        if self.is_on:
            self._end(State.FAILED)

    def repair(self) -> None:
        """One thing that broke is mended."""
        self._num_faults -= 1
        if self.state is State.FAILED and not self.is_broken and not self.is_wanted:
            self._enter(State.OFF)
        self._begin(self._cold_start_s)

    def _begin(self, cold_start_s: float) -> None:
        if self.is_wanted and not self.is_broken and self._process is None:
            self._enter(State.BOOTING if cold_start_s else State.UP)
            self._process = self._env.process(self._live(cold_start_s))

    def _live(self, cold_start_s: float) -> Generator[Event, object, None]:
        try:
            if cold_start_s:
                yield self._env.timeout(cold_start_s)
                self._enter(State.UP)
            yield from self._serve()
        except simpy.Interrupt:
            self._process = None
        self._begin(self._cold_start_s)  # as somebody may have asked for it in this very moment

    def _end(self, state: State) -> None:
        if self._process is not None:
            self._process.interrupt(STOPPED)
        self._enter(state)

    def _enter(self, state: State) -> None:
        self.state = state
        self.changes.append((self._env.now, state))
        self._on_change(state)

    def spans(self, begin_s: float, end_s: float) -> Spans:
        """(state, from, to) between two times, in order; states that took no time are left out."""
        ends_s = [began_s for began_s, _ in self.changes[1:]] + [end_s]
        for (began_s, state), ended_s in zip(self.changes, ends_s, strict=True):
            first_s, last_s = max(began_s, begin_s), min(ended_s, end_s)
            if first_s < last_s:
                yield state, first_s, last_s

    def seconds(self, states: frozenset[State], begin_s: float, end_s: float) -> float:
        """How long it was in one of these states between two times."""
        return sum(last_s - first_s for state, first_s, last_s in self.spans(begin_s, end_s) if state in states)
