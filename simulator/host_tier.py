"""A replica's host memory as a source of keys and values: what its device evicted comes back where that saves time.

```
 evicted block ──► outgoing link (staging ahead of it is bounded) ──► host tier, LRU
 request that waits ◄── incoming link ◄── pinned positions of the tier
```

Read `HostMemory.offer` first: whether, and up to where, fetching beats computing. The tier itself, which knows no
clock, is `kvcache.host_tier`; who waits for a fetch, and with which blocks, is `loading`.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import simpy
from simpy.events import Event

from kvcache.host_tier import Fetch, HostTier
from kvcache.managers import Load
from kvcache.specs import cdiv
from simulator.batch import Batch
from simulator.deployment import Deployment
from simulator.host_link import HostLink
from simulator.host_tally import HostTally
from simulator.latency import StepTimes
from simulator.loading import NOTHING, Offer
from simulator.replica import Inbox, wait_until
from simulator.request import Request
from simulator.scenario import ScenarioError
from simulator.scheduler import Scheduler

__all__ = ["HostMemory", "best_fetch", "prefill_s", "with_host_memory"]

GIB = 1 << 30
LINK_SHARE = 0.8
"""Of a host link's nominal rate that copies reach: nvbandwidth measures 24.8 of 32 GB/s on an A100 (NVIDIA forum
352186) and 55.6 of 64 on PCIe 5 (its own example)."""
FETCH_LATENCY_S = 50e-6
"""Of one fetch beside its bytes: launching the copies and hearing of their end. Assumed."""
STAGED_STEPS = 2
"""What the tokens of so many full steps fill may wait to be copied out: of the one that runs, and of the next."""
MOST_LENGTHS = 16
"""At which a fetch may end that are compared with each other."""


class _Asked(NamedTuple):
    """What a waiting request could have, as long as no key comes or goes."""

    request: Request
    state: tuple[int, ...]
    fetches: list[Fetch]
    """The first is none: all behind the device's hit is computed. Empty if the host has nothing for it."""
    computes_s: list[float]
    """For each, how long the rest of the prompt takes."""
    junction: int
    """Where others were seen to part from it, in both tiers together."""


def best_fetch(fetches: Sequence[Fetch], computes_s: Sequence[float], fetch_s: Callable[[int], float]) -> int:
    """Which of some fetches lets a prompt be complete first: then `computes_s` are left; of equals the shortest.

    `fetch_s` says how long so many bytes take from now on.
    """
    return min(range(len(fetches)), key=lambda nth: fetch_s(fetches[nth].num_bytes) + computes_s[nth])


def prefill_s(step_times: StepTimes, start: int, end: int, max_chunk: int) -> float:
    """Seconds of the steps that compute a prompt's tokens from `start` to `end`, with nobody else in them."""
    seconds = 0.0
    while start < end:
        num_new = min(max_chunk, end - start)
        seconds += step_times.durations_s(Batch(((num_new, start),), 0, 0))[0]
        start += num_new
    return seconds


class HostMemory:
    """The host tier of one replica with its two copy directions: a `KVSource`, and the tier's `Writer`."""

    def __init__(self, deployment: Deployment, bytes_per_s: float) -> None:
        """`bytes_per_s` are those of each rank's link, one way; the ranks copy side by side."""
        scenario, limits = deployment.scenario, deployment.scheduler_settings
        num_ranks = scenario.tensor_parallel_size
        capacity_bytes = int((scenario.kv_offloading_size or 0) * GIB)
        self.tier = HostTier(deployment.layout, deployment.cache_settings, capacity_bytes, self, num_ranks)
        self.outgoing, self.incoming = HostLink(bytes_per_s * num_ranks), HostLink(bytes_per_s * num_ranks)
        step_bytes = sum(
            cdiv(limits.max_num_batched_tokens, group.spec.block_size) * group.bytes_per_block
            for group in deployment.layout.groups
        )
        self.staging_bytes = STAGED_STEPS * num_ranks * step_bytes
        """That may wait to be copied out. It lies outside the pool."""
        self._block_bytes = num_ranks * deployment.layout.bytes_per_block
        self._step_times = deployment.step_times
        self._max_chunk = limits.max_chunk
        self._env: simpy.Environment
        self._inbox: Inbox
        self._writes: deque[tuple[float, list[int]]] = deque()
        """(when they are there, positions that were evicted together) of what is on its way to the host."""
        self._asked: _Asked | None = None
        self._offered: list[int] = []
        """Positions of the last offer, if nobody has taken it yet: they stay until something else is offered."""
        self._offered_s = -1.0
        """When that was: what is evicted at that very moment makes room for it."""
        self._room_s = 0.0
        """When what made room for it has left the device."""
        self._declined: set[str] = set()
        """Requests that could have fetched something when they were last asked, and better compute it."""
        self._num_fetches = self._num_fetched_tokens = 0
        self._num_dropped_blocks = self._num_dropped_bytes = 0
        self._fetches_s: list[float] = []

    def connect(self, env: simpy.Environment, inbox: Inbox) -> None:
        """The clock, and where the replica hears of what has arrived."""
        self._env, self._inbox = env, inbox

    # A `Writer`.

    def evicted(self, positions: list[int]) -> None:
        """Copy what leaves the device, as far as the link can take it: ends are dropped before beginnings.

        What makes room for a fetch waits where it is, for nothing overwrites it before it has left.
        """
        self.settle()
        now_s, num_bytes = self._env.now, self.tier.bytes_of(positions[0])
        makes_room = now_s == self._offered_s
        most = len(positions)
        if not makes_room:
            most = min(most, int((self.staging_bytes - self.outgoing.backlog_bytes(now_s)) / num_bytes))
        written = self.tier.begin_write(positions[len(positions) - most :]) if most > 0 else []
        num_dropped = len(positions) - len(written)
        self._num_dropped_blocks += num_dropped * self.tier.num_blocks(positions[0])
        self._num_dropped_bytes += num_dropped * num_bytes
        if written:
            there_s = self.outgoing.send(len(written) * num_bytes, now_s)
            self._writes.append((there_s, written))
            if makes_room:
                self._room_s = there_s

    def settle(self) -> None:
        """What has arrived on the host by now can be hit."""
        now_s = self._env.now
        while self._writes and self._writes[0][0] <= now_s:
            self.tier.end_write(self._writes.popleft()[1])

    # A `KVSource`.

    def offer(self, request: Request, hit_tokens: int) -> Offer:
        """What is worth fetching: the request's prompt is complete earlier than if it were computed."""
        self.settle()
        fetch = self._choose(request, hit_tokens)
        missing = [] if fetch is None else self.tier.missing(request.blocks.keys, fetch.num_tokens)
        if missing != self._offered:
            self.tier.unpin(self._offered)
            # A chunk may end within a block, which a hit passes over and a load may not.
            self._offered = missing if all(map(self.tier.holds, missing)) else []
            self.tier.pin(self._offered)
        if fetch is None or not self._offered:
            return NOTHING
        self._offered_s, self._room_s = self._env.now, 0.0
        return Offer(fetch.num_tokens, fetch.num_tokens)

    def _choose(self, request: Request, hit_tokens: int) -> Fetch | None:
        """The fetch after which the prompt is complete first, or None."""
        asked = self._ask(request, hit_tokens)
        # Sparse retention keeps a window or a state there: as well if it is the host that tells where "there" is.
        request.blocks.junction = max(request.blocks.junction, asked.junction)
        if not asked.fetches:
            return None
        nth = best_fetch(asked.fetches, asked.computes_s, self._fetch_s)
        if nth:
            self._declined.discard(request.request_id)
            return asked.fetches[nth]
        self._declined.add(request.request_id)
        return None

    def _ask(self, request: Request, hit_tokens: int) -> _Asked:
        """What a request could have; worked out anew only where that may have become more."""
        pool, asked = self.tier.manager.pool, self._asked
        state: tuple[int, ...] = (hit_tokens, request.known_tokens, pool.num_shared_hashings)
        if not self._offered:  # what was offered stays on the host
            state = (*state, self.tier.num_changes)
        if asked is None or asked.request is not request or asked.state[: len(state)] != state:
            keys, known_tokens = request.blocks.keys, request.known_tokens
            fetches, junction = self.tier.find(keys, known_tokens, hit_tokens, MOST_LENGTHS)
            if fetches:
                fetches = [Fetch(hit_tokens, 0), *fetches]
            computes_s = [
                prefill_s(self._step_times, fetch.num_tokens, known_tokens, self._max_chunk) for fetch in fetches
            ]
            asked = self._asked = _Asked(request, state, fetches, computes_s, junction)
        return asked

    def _fetch_s(self, num_bytes: int) -> float:
        """From now until so many bytes are on the device, at most: what they displace must have left by then."""
        if not num_bytes:
            return 0.0
        now_s, pool = self._env.now, self.tier.manager.pool
        seconds = self.incoming.wait_s(now_s) + num_bytes / self.incoming.bytes_per_s
        displaced_bytes = num_bytes - (pool.num_free - pool.num_cached_free) * self._block_bytes
        if displaced_bytes > 0:
            seconds = max(seconds, self.outgoing.wait_s(now_s) + displaced_bytes / self.outgoing.bytes_per_s)
        return FETCH_LATENCY_S + seconds

    def start(self, request: Request, loads: list[Load]) -> None:
        """Copy what was offered last."""
        positions = self._offered
        self._offered, self._offered_s = [], -1.0
        self._num_fetches += 1
        self._num_fetched_tokens += request.computed - request.blocks.hit_tokens
        num_bytes = sum(map(self.tier.bytes_of, positions))
        there_s = max(self.incoming.send(num_bytes, self._env.now), self._room_s) + FETCH_LATENCY_S
        self._fetches_s.append(there_s - self._env.now)
        self._env.process(self._arrive(request, positions, there_s))

    def _arrive(self, request: Request, positions: list[int], there_s: float) -> Generator[Event, object, None]:
        yield wait_until(self._env, there_s)
        self.tier.unpin(positions)
        self._inbox.loaded(request)

    # Looking in.

    def tally(self) -> HostTally:
        """What has happened so far."""
        self.settle()
        tier = self.tier
        return HostTally(
            capacity_bytes=tier.capacity_bytes,
            used_bytes=tier.used_bytes,
            bytes_out=self.outgoing.num_bytes,
            bytes_in=self.incoming.num_bytes,
            busy_out_s=self.outgoing.busy_s,
            busy_in_s=self.incoming.busy_s,
            evicted_blocks=tier.num_evicted_blocks,
            dropped_blocks=self._num_dropped_blocks,
            dropped_bytes=self._num_dropped_bytes,
            num_fetches=self._num_fetches,
            fetched_tokens=self._num_fetched_tokens,
            declined_requests=len(self._declined),
            fetches_s=tuple(self._fetches_s),
        )


def with_host_memory(deployment: Deployment) -> tuple[Scheduler, HostMemory | None]:
    """A deployment's scheduler, and its host memory if the scenario asks for some.

    Raises ScenarioError where nobody says how fast its link is, KVCacheError where nothing could be kept.
    """
    scenario = deployment.scenario
    if not scenario.kv_offloading_size:
        if scenario.kv_offloading_size is None and scenario.kv_offloading_bandwidth is not None:
            raise ScenarioError("--kv-offloading-bandwidth: goes with --kv-offloading-size only")
        return deployment.new_scheduler(), None
    if scenario.back_with is not None:
        raise ScenarioError("--back-with: does not go with --kv-offloading-size yet")
    host = HostMemory(deployment, _bandwidth_bytes_per_s(deployment))
    return deployment.new_scheduler(host.tier.manager, host), host


def _bandwidth_bytes_per_s(deployment: Deployment) -> float:
    stated, gpu = deployment.scenario.kv_offloading_bandwidth, deployment.gpu
    if stated is not None:
        return stated
    if gpu is None or gpu.host_bytes_per_s is None:
        whose = "--gpu is not given" if gpu is None else f"the host link of {gpu.name} is not known"
        raise ScenarioError(f"--kv-offloading-bandwidth: is needed, for {whose}: say 50GB for 50 GB/s")
    return LINK_SHARE * gpu.host_bytes_per_s
