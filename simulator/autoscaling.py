"""How many replicas a fleet has, by a rule: so many that each has about its share of the load."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING

import simpy
from simpy.events import Event

from simulator.lives import State

if TYPE_CHECKING:
    from simulator.fleet import Fleet
    from simulator.fleet_replica import Replica

__all__ = ["Autoscaling"]

LOOKS_PER_DECISION = 5
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """A target for each replica, of exactly one kind, and bounds.

    It looks at the fleet five times in `every_s` seconds and decides on the mean of what it saw: replicas needed are
    the load over the target, rounded up. Only what replicas report counts, nothing that is still to come.
    """

    target_running: float | None = None
    """Requests at a replica: those that wait count too, and so do those in the fleet's queue, or a fleet that is full
    would seem to have enough."""
    target_kv_usage: float | None = None
    """Share of the pool's blocks that requests hold."""
    min_replicas: int = 1
    max_replicas: int = 8
    every_s: float = 15.0
    cooldown_s: float = 60.0
    """After a decision that changed something, the next one comes no sooner."""

    def __post_init__(self) -> None:
        if (self.target_running is None) == (self.target_kv_usage is None):
            raise ValueError("needs one target, running or kv-usage, and not both")
        if self.target_running is not None and not 0 < self.target_running < inf:
            raise ValueError(f"running must be a number of requests above 0, got {self.target_running:g}")
        if self.target_kv_usage is not None and not 0 < self.target_kv_usage < 1:
            raise ValueError(f"kv-usage must be between 0 and 1, got {self.target_kv_usage:g}")
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"needs 1 <= min <= max, got min={self.min_replicas} and max={self.max_replicas}")
        if not 0 < self.every_s < inf:
            raise ValueError(f"every must be a number of seconds above 0, got {self.every_s:g}")
        if not 0 <= self.cooldown_s < inf:
            raise ValueError(f"cooldown must be a number of seconds of at least 0, got {self.cooldown_s:g}")

    def __str__(self) -> str:
        if self.target_running is not None:
            target = f"running={self.target_running:g}"
        else:
            target = f"kv-usage={self.target_kv_usage:g}"
        bounds = f"min={self.min_replicas},max={self.max_replicas}"
        return f"{target},{bounds},every={self.every_s:g},cooldown={self.cooldown_s:g}"

    def run(self, env: simpy.Environment, fleet: Fleet) -> Generator[Event, object, None]:
        """Look, decide, act, until the fleet has served everybody."""
        acted_s = -inf
        while True:
            seen = 0.0
            for _ in range(LOOKS_PER_DECISION):
                yield env.timeout(self.every_s / LOOKS_PER_DECISION)
                if fleet.is_over:
                    return
                seen += self._needed(fleet)
            needed = ceil(seen / LOOKS_PER_DECISION - ROUNDING)
            wanted = min(max(needed, self.min_replicas), self.max_replicas)
            if env.now - acted_s >= self.cooldown_s - ROUNDING and scale_to(fleet, wanted):
                acted_s = env.now

    def _needed(self, fleet: Fleet) -> float:
        """With how many replicas each would have its target at this moment."""
        serving = fleet.serving
        if self.target_running is not None:
            return (sum(replica.num_in_flight for replica in serving) + len(fleet.queue)) / self.target_running
        assert self.target_kv_usage is not None
        return sum(replica.kv_cache_usage for replica in serving) / self.target_kv_usage


def scale_to(fleet: Fleet, num_replicas: int) -> bool:
    """Start or drain replicas until so many are wanted and in order. False if they are already.

    Who is broken is not waited for: another is started, and the broken one stays off when it is mended.
    """
    there = [replica for replica in fleet.replicas if replica.lives.is_wanted and not replica.lives.is_broken]
    missing = num_replicas - len(there)
    if missing > 0:
        for replica in fleet.replicas:
            if replica.lives.is_broken:
                replica.lives.drain()
        for _ in range(missing):
            _spare(fleet).lives.start()
    for replica in sorted(there, key=_worth)[: max(0, -missing)]:
        replica.lives.drain()
    return missing != 0


def _spare(fleet: Fleet) -> Replica:
    """A replica that is off and could be started, or a new one."""
    for replica in fleet.replicas:
        lives = replica.lives
        if lives.state is State.OFF and not lives.is_wanted and not lives.is_broken:
            return replica
    return fleet.add()


def _worth(replica: Replica) -> tuple[bool, int, float]:
    """Who goes first: who is not up yet, then who has the fewest requests: it is gone, and not paid for, soonest.

    Of equals the youngest: the older ones' caches hold more.
    """
    return replica.lives.state is not State.BOOTING, replica.num_in_flight, -replica.lives.started_s
