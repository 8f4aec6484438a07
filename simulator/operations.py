"""How a fleet is operated: what fails and is drained, how many replicas there are, and what becomes of requests.

Whatever watches a fleet is a process of its own: it looks, lets time pass, and starts, drains, breaks or mends
replicas (`lives.Lives`). The fleet knows of none of them. Each ends when the fleet has served everybody, and schedules
nothing while there is nothing that it could do: so a run ends, also one in which nobody ever comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simpy

from simulator.autoscaling import Autoscaling
from simulator.outages import Drain, Outage, RandomOutages

if TYPE_CHECKING:
    from simulator.fleet import Fleet

__all__ = ["MOST_RETRIES", "QUIET", "Operations", "operate"]

MOST_RETRIES = 100
"""A request that takes longer than its replicas live would be tried for ever; here it is lost then."""


@dataclass(frozen=True, slots=True)
class Operations:
    """What happens to the replicas of a fleet while it runs."""

    outages: tuple[Outage, ...] = ()
    random_outages: RandomOutages | None = None
    drains: tuple[Drain, ...] = ()
    autoscaling: Autoscaling | None = None
    cold_start_s: float = 0.0
    """Seconds from the start of a replica until it takes requests; those of the beginning are up at once."""
    max_retries: int = MOST_RETRIES
    """How often a request is sent elsewhere when its replica fails; it starts from scratch there. 0: it is lost."""

    def __post_init__(self) -> None:
        if not 0 <= self.cold_start_s < float("inf"):
            raise ValueError(f"cold_start_s must be a number of seconds of at least 0, got {self.cold_start_s:g}")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, got {self.max_retries}")

    def to_json(self) -> dict[str, Any]:
        """What was asked for, in the command line's words."""
        stated = {
            "outages": [str(outage) for outage in self.outages],
            "random_outages": None if self.random_outages is None else str(self.random_outages),
            "drains": [str(drain) for drain in self.drains],
            "autoscaling": None if self.autoscaling is None else str(self.autoscaling),
            "cold_start_s": self.cold_start_s,
            "max_retries": self.max_retries,
        }
        return {name: value for name, value in stated.items() if value not in (None, [])}


QUIET = Operations()
"""Nothing fails, and all replicas are there from the first request to the last."""


def operate(env: simpy.Environment, fleet: Fleet) -> None:
    """Start what its operations say."""
    operations = fleet.operations
    watching = [*operations.outages, *operations.drains, operations.random_outages, operations.autoscaling]
    for each in watching:
        if each is not None:
            env.process(each.run(env, fleet))
