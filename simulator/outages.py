"""What takes replicas away: outages at a stated time or at random, and drains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import simpy
from simpy.events import Event

from simulator.lives import Lives, State
from simulator.replica import wait_until

if TYPE_CHECKING:
    from simulator.fleet import Fleet
    from simulator.fleet_replica import Replica

__all__ = ["Drain", "Outage", "RandomOutages"]

Process = Generator[Event, object, None]


@dataclass(frozen=True, slots=True)
class _AtATime(ABC):
    """Something happens to a replica at a time, and is over so many seconds later; None: never."""

    replica: int
    at_s: float
    for_s: float | None = None

    def __post_init__(self) -> None:
        if self.replica < 0:
            raise ValueError(f"replica must be a number from 0, got {self.replica}")
        if not 0 <= self.at_s < float("inf"):
            raise ValueError(f"at must be a number of seconds of at least 0, got {self.at_s:g}")
        if self.for_s is not None and not 0 <= self.for_s < float("inf"):
            raise ValueError(f"for must be a number of seconds of at least 0, got {self.for_s:g}")

    def __str__(self) -> str:
        return f"replica={self.replica},at={self.at_s:g}" + ("" if self.for_s is None else f",for={self.for_s:g}")

    def run(self, env: simpy.Environment, fleet: Fleet) -> Process:
        """Let it happen. Nothing does to a replica that is not there then."""
        yield wait_until(env, self.at_s)
        if self.replica < len(fleet.replicas):
            yield from self._happen(env, fleet, fleet.replicas[self.replica].lives)

    @abstractmethod
    def _happen(self, env: simpy.Environment, fleet: Fleet, lives: Lives) -> Process:
        """What it is, from now on."""


class Outage(_AtATime):
    """A replica breaks at a time, whatever runs there, and can start again so many seconds later; None: never."""

    __slots__ = ()

    def _happen(self, env: simpy.Environment, fleet: Fleet, lives: Lives) -> Process:
        lives.fail()
        if self.for_s is not None:
            yield env.timeout(self.for_s)
            lives.repair()


class Drain(_AtATime):
    """A replica takes no requests from a time on, serves those that it has, and is off then.

    It is started again so many seconds after that; None: never.
    """

    __slots__ = ()

    def _happen(self, env: simpy.Environment, fleet: Fleet, lives: Lives) -> Process:
        lives.drain()
        while lives.is_on:
            yield fleet.next_change()
        if self.for_s is not None:
            yield env.timeout(self.for_s)
            lives.start()


@dataclass(frozen=True, slots=True)
class RandomOutages:
    """Each replica breaks now and then while it serves, and is mended: both times are exponentially distributed.

    So a replica that starts at once is up MTBF/(MTBF + MTTR) of the time.
    """

    mtbf_s: float
    """Mean seconds that a replica serves until it breaks."""
    mttr_s: float
    """Mean seconds until it can start again."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, mean_s in (("mtbf", self.mtbf_s), ("mttr", self.mttr_s)):
            if not 0 < mean_s < float("inf"):
                raise ValueError(f"{name} must be a number of seconds above 0, got {mean_s:g}")

    def __str__(self) -> str:
        return f"mtbf={self.mtbf_s:g},mttr={self.mttr_s:g}"

    def run(self, env: simpy.Environment, fleet: Fleet) -> Process:
        """Watch each replica, also those that are added."""
        num_watched = 0
        while not fleet.is_over:
            for replica in fleet.replicas[num_watched:]:
                env.process(self._break(env, fleet, replica))
            num_watched = len(fleet.replicas)
            yield fleet.next_change()

    def _break(self, env: simpy.Environment, fleet: Fleet, replica: Replica) -> Process:
        draws, lives = Random(f"{self.seed}: outages of replica {replica.name}"), replica.lives
        while True:
            # While it does not serve nothing is scheduled: where no replica ever comes back, a run ends.
            while lives.state not in (State.UP, State.DRAINING):
                yield fleet.next_change()
            yield env.timeout(draws.expovariate(1 / self.mtbf_s))
            if fleet.is_over:
                return
            # The exponential distribution has no memory: who was away meanwhile is as good as new either way.
            if lives.state in (State.UP, State.DRAINING):
                lives.fail()
                yield env.timeout(draws.expovariate(1 / self.mttr_s))
                lives.repair()
