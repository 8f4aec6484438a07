"""What a host tier has done in a run: counts and times, of one replica or of several together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["HostTally", "add_up", "add_up_lives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTally:
    """Bytes are those of all ranks. Out is from the device to the host, in is back."""

    capacity_bytes: int
    used_bytes: int
    """When the run was over."""
    bytes_out: int
    bytes_in: int
    busy_out_s: float
    """Seconds in which the link copied, in each direction; of several replicas, together."""
    busy_in_s: float
    evicted_blocks: int
    """That the host gave up for others."""
    dropped_blocks: int
    """That the device evicted and the host did not get: too much waited for the link, or all room was in use."""
    dropped_bytes: int
    num_fetches: int
    fetched_tokens: int
    """That need not be computed, beyond what the device had cached."""
    declined_requests: int
    """That could have fetched something, and computed it because that was faster."""
    fetches_s: tuple[float, ...]
    """How long each fetch took, its wait for those before it included."""
    num_replicas: int = 1


def add_up(tallies: Sequence[HostTally]) -> HostTally:
    """Those of several replicas, at least one, as one."""
    names = [name for name in HostTally.__slots__ if name != "fetches_s"]
    totals = {name: sum(getattr(tally, name) for tally in tallies) for name in names}
    return HostTally(**totals, fetches_s=tuple(each for tally in tallies for each in tally.fetches_s))


def add_up_lives(tallies: Sequence[HostTally]) -> HostTally:
    """Those of one replica's lives, at least one, as one: each had the same memory anew."""
    last = tallies[-1]
    return replace(add_up(tallies), capacity_bytes=last.capacity_bytes, used_bytes=last.used_bytes, num_replicas=1)
