"""Routers: which replica of a fleet gets a request.

Each is a small object with one method. It sees of a replica what a real router can see: how many of the requests
that it sent there have not ended, and which prefixes the replica holds, or held a while ago.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from simulator.arrival import Arrival

__all__ = [
    "LeastLoaded",
    "OneQueue",
    "PowerOfTwoChoices",
    "PrefixAware",
    "ReplicaView",
    "RoundRobin",
    "Router",
    "SessionAffinity",
    "router_name",
]


def router_name(router: object) -> str:
    """What the command line calls a router: `PrefixAware` is prefix-aware."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(router).__name__).lower()


class ReplicaView(Protocol):
    """What a router sees of a replica."""

    @property
    def name(self) -> str:
        """The same for as long as the replica lives, and no other's."""

    @property
    def num_in_flight(self) -> int:
        """Requests that were sent there and have not ended."""

    @property
    def max_num_seqs(self) -> int:
        """Requests that it runs at once, at most."""

    def held_tokens(self, arrival: Arrival) -> int:
        """Tokens of the prompt that it would not have to compute, as far as the router knows."""


class Router(Protocol):
    """Decides where requests go; it is shown the replicas that take requests at the moment."""

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int | None:
        """The index of the replica that gets the request, among those that are there (at least one).

        None leaves it in the fleet's queue: it is asked again when a request has ended somewhere.
        """


@dataclass(slots=True)
class Turns:
    """Whose turn it is, so that equals are chosen in turn and not always the first of them.

    It is a place in the row of replicas: when one comes or goes, at most one turn is left out or given twice.
    """

    last: int = -1

    def pick(self, costs: Sequence[float]) -> int:
        """The index of the least cost; of several that of the one behind the last picked."""
        num = len(costs)
        self.last = min(range(num), key=lambda index: (costs[index], (index - self.last - 1) % num))
        return self.last


@dataclass(slots=True)
class RoundRobin:
    """One after the other, whatever happens there."""

    _last: int = -1

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int:
        """The next one."""
        self._last = (self._last + 1) % len(replicas)
        return self._last


@dataclass(slots=True)
class LeastLoaded:
    """Where the fewest requests are in flight; equals in turn."""

    _turns: Turns = field(default_factory=Turns)

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int:
        """The least loaded of all."""
        return self._turns.pick([replica.num_in_flight for replica in replicas])


class PowerOfTwoChoices:
    """The less loaded of two that are drawn at random: nearly as even as the least loaded of all.

    Where several routers stand side by side and each counts its own requests only, it keeps them from all
    choosing the same replica.
    """

    __slots__ = ("_random",)

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(f"{seed}: two choices")

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int:
        """One of two."""
        if len(replicas) == 1:
            return 0
        first, second = self._random.sample(range(len(replicas)), 2)
        return first if replicas[first].num_in_flight <= replicas[second].num_in_flight else second


@dataclass(slots=True)
class SessionAffinity:
    """A session's requests all go to one replica; those without a session to the least loaded.

    Every replica draws a number for the session, and the highest wins (rendezvous hashing: Thaler and Ravishankar,
    "Using name-based mappings to increase hit rates", 1998): when one comes or goes, only its sessions move.
    """

    _others: LeastLoaded = field(default_factory=LeastLoaded)

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int:
        """The session's own."""
        session = arrival.row.session
        if session is None:
            return self._others.choose(arrival, replicas)
        return max(range(len(replicas)), key=lambda index: _draw(session, replicas[index].name))


def _draw(session: str, replica: str) -> bytes:
    return blake2b(f"{session}\n{replica}".encode(), digest_size=8).digest()


@dataclass(slots=True)
class PrefixAware:
    """Where the prompt is cheapest: tokens to compute that the replica does not hold, and the requests ahead.

    A request in flight weighs as much as `request_tokens` tokens of the prompt. With 0 the longest prefix wins
    however long the queue is; the higher, the nearer to the least loaded.
    """

    request_tokens: float = 500.0
    _turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        if not self.request_tokens >= 0:
            raise ValueError(f"request_tokens must be at least 0, got {self.request_tokens}")

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int:
        """The cheapest; equals in turn.

        The least loaded are asked first, and only as long as what is shared could still make one the cheapest.
        """
        costs = [self.request_tokens * replica.num_in_flight for replica in replicas]
        least = math.inf
        for index in sorted(range(len(costs)), key=costs.__getitem__):
            if costs[index] - arrival.shared_tokens > least:
                break
            costs[index] -= replicas[index].held_tokens(arrival)
            least = min(least, costs[index])
        return self._turns.pick(costs)


@dataclass(slots=True)
class OneQueue:
    """Requests wait in the fleet's own queue until a replica has a place to run them: nobody waits beside an idle one.

    The textbook's queue with several servers (M/D/c), which no router can beat in waiting time without knowing
    lengths or prefixes.
    """

    _turns: Turns = field(default_factory=Turns)

    def choose(self, arrival: Arrival, replicas: Sequence[ReplicaView]) -> int | None:
        """The least loaded that runs fewer than `max_num_seqs`, or none."""
        chosen = self._turns.pick([replica.num_in_flight / replica.max_num_seqs for replica in replicas])
        return chosen if replicas[chosen].num_in_flight < replicas[chosen].max_num_seqs else None
