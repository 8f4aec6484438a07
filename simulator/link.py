"""The network between replicas: what a transfer takes, and which one waits for another.

```
asked ──► waits for the sender's and the receiver's port ──► bytes pass ──► latency ──► arrived
```

A replica's port is all of its ranks' network cards together, one for each direction. One transfer at a time
passes through a port, in the order in which they were asked for; who could pass at once overtakes who must wait.
Real cards let transfers share the wire, packet by packet: then all of them end late that here end one after the
other, the last one at the same time.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy
from simpy.events import Event

from simulator.replica import wait_until

__all__ = ["Link", "Network", "Port", "Transfer"]


@dataclass(frozen=True, slots=True)
class Link:
    """What one replica can send, and as much receive at the same time."""

    bandwidth_bytes_per_s: float
    """Over the network cards of all of its ranks."""
    latency_s: float = 0.0
    """From the last byte sent to the moment at which the receiver's scheduler knows."""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_bytes_per_s < float("inf"):
            raise ValueError(
                f"bandwidth must be a number of bytes per second above 0, got {self.bandwidth_bytes_per_s}"
            )
        if not 0 <= self.latency_s < float("inf"):
            raise ValueError(f"latency must be a number of seconds of at least 0, got {self.latency_s}")

    def seconds(self, num_bytes: int) -> float:
        """What a transfer takes that need not wait for others."""
        return num_bytes / self.bandwidth_bytes_per_s + self.latency_s


@dataclass(slots=True, eq=False)
class Port:
    """What a replica sends, or what it receives."""

    is_busy: bool = False
    busy_s: float = 0.0
    """Seconds in which bytes passed."""
    num_bytes: int = 0


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes on their way, or waiting for it. Times are None until they have come."""

    num_bytes: int
    asked_s: float
    started_s: float | None = None
    arrived_s: float | None = None


class Network:
    """All transfers between replicas."""

    def __init__(self, env: simpy.Environment, link: Link) -> None:
        self._env = env
        self._link = link
        self._waiting: list[tuple[Transfer, Port, Port, Callable[[], None]]] = []

    def send(self, num_bytes: int, sender: Port, receiver: Port, on_arrived: Callable[[], None]) -> Transfer:
        """Send bytes as soon as both ports are free; `on_arrived` is called when they are there."""
        transfer = Transfer(num_bytes, self._env.now)
        self._waiting.append((transfer, sender, receiver, on_arrived))
        self._start_all()
        return transfer

    def _start_all(self) -> None:
        """Let those pass whose two ports are free, the first asked for first."""
        waiting = []
        for asked in self._waiting:
            transfer, sender, receiver, _ = asked
            if sender.is_busy or receiver.is_busy:
                waiting.append(asked)
            else:
                sender.is_busy = receiver.is_busy = True
                transfer.started_s = self._env.now
                self._env.process(self._pass(*asked))
        self._waiting = waiting

    def _pass(
        self, transfer: Transfer, sender: Port, receiver: Port, on_arrived: Callable[[], None]
    ) -> Generator[Event, object, None]:
        env, busy_s = self._env, transfer.num_bytes / self._link.bandwidth_bytes_per_s
        yield wait_until(env, env.now + busy_s)
        for port in (sender, receiver):
            port.is_busy = False
            port.busy_s += busy_s
            port.num_bytes += transfer.num_bytes
        self._start_all()
        yield wait_until(env, env.now + self._link.latency_s)
        transfer.arrived_s = env.now
        on_arrived()
