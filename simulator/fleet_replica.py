"""A replica of a fleet: the process that serves a single server, its lives, and what others see of it."""

from collections.abc import Generator, Iterable, Mapping
from typing import Protocol

import simpy
from simpy.events import Event

from kvcache.manager import KVCacheManager
from kvcache.prefix_snapshot import PrefixSnapshot
from simulator.arrival import Arrival
from simulator.batch import Batch
from simulator.deployment import Deployment
from simulator.engine import too_long
from simulator.host_tally import HostTally, add_up_lives
from simulator.host_tier import HostMemory, with_host_memory
from simulator.lives import Lives, State
from simulator.load import Load
from simulator.metrics import summarize
from simulator.recorder import Recorder
from simulator.replica import Inbox, serve
from simulator.request import Request
from simulator.result import Result
from simulator.running import generated_tokens, holding
from simulator.scheduler import Scheduler

__all__ = ["Replica"]


class Owner(Protocol):
    """Whoever sends requests to a replica."""

    def left(self, arrivals: Iterable[Arrival], replica: "Replica") -> None:
        """These requests have ended there."""

    def cut_off(self, requests: dict[Request, Arrival], replica: "Replica") -> None:
        """These requests were there when it failed, in the order in which they were sent."""

    def changed(self, state: State) -> None:
        """A replica has changed its state."""


class Replica:
    """One server of a fleet: its process, what it records, and what a router sees of it."""

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        deployment: Deployment,
        owner: Owner,
        staleness_s: float = 0.0,
        cold_start_s: float = 0.0,
    ) -> None:
        """Off until its `lives` are started; it takes so long to start then."""
        self.name = str(number)
        self.deployment = deployment
        self.scheduler, self._host = self._new_scheduler()
        self.recorder = Recorder(self.scheduler)
        self.max_num_seqs = deployment.scheduler_settings.max_num_seqs
        self.load = Load()
        """Requests that were sent here and have not ended."""
        self.rejected_after_s = 0.0
        """How long those were there who were turned away, in all."""
        self.num_retries: list[int] = []
        """Of each request that ended here, in the order of its table."""
        self.num_retried = 0
        """Requests that a failure here sent elsewhere."""
        self.lost_tokens = 0
        """Output tokens that requests had got here when it failed."""
        self.num_lost_answers = 0
        """Requests that had got some of them."""
        self.lives = Lives(env, self._serve, lambda: not self.load.num, self._changed, cold_start_s)
        self._env = env
        self._owner = owner
        self._arrivals: dict[Request, Arrival] = {}
        """Of the requests that are here."""
        self._staleness_s = staleness_s
        self.has_server = False
        """Whether somebody is there whose cache and requests count: not before it is up, nor once it is gone."""
        self._is_new = True
        self._tallies: list[HostTally] = []
        """Of the host memory of lives that are over."""
        self._new_server()

    # Its lives.

    def _new_scheduler(self) -> tuple[Scheduler, HostMemory | None]:
        return with_host_memory(self.deployment)

    def _new_server(self) -> None:
        """An empty cache, and nobody there."""
        if not self._is_new:
            if self._host is not None:
                self._tallies.append(self._host.tally())
            self.scheduler, self._host = self._new_scheduler()
            self.recorder.restart(self.scheduler)
        self._inbox = Inbox(self._env, self.scheduler)
        self._prefixes = self.scheduler.manager
        if self._host is not None:
            self._host.connect(self._env, self._inbox)
            self._prefixes = self._host.tier.prefixes
        self._snapshot = PrefixSnapshot(self._prefixes) if self._staleness_s else None
        self._snapshot_s = -self._staleness_s

    def _changed(self, state: State) -> None:
        if state is State.UP:
            self._new_server()
            self.has_server, self._is_new = True, False
        self._owner.changed(state)

    def _serve(self) -> Generator[Event, object, None]:
        try:
            yield from serve(self._env, self.scheduler, self.deployment.step_times, self._inbox, self)
        except simpy.Interrupt:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """The server is gone, with its cache and with what requests had got; they are elsewhere from now on."""
        scheduler, self.has_server = self.scheduler, False
        scheduler.manager.check_integrity([request.blocks for request in holding(scheduler)])
        for _, num_tokens in generated_tokens(scheduler):
            self.lost_tokens += num_tokens
            self.num_lost_answers += num_tokens > 0
        requests, self._arrivals = self._arrivals, {}
        self.load.change(-len(requests), self._env.now)
        if requests:
            self._owner.cut_off(requests, self)

    def lose(self, requests: Mapping[Request, Arrival], reason: str) -> None:
        """These requests, which were here when it failed, are not tried again."""
        for request, arrival in requests.items():
            self.recorder.lost(request, reason)
            self.num_retries.append(arrival.num_retries)

    # A replica is a `ReplicaView`.

    @property
    def kv_cache_usage(self) -> float:
        """Blocks that requests hold, of all but the null block, when a step was planned last."""
        return self.scheduler.manager.pool.usage

    @property
    def num_in_flight(self) -> int:
        """Requests that were sent here and have not ended."""
        return self.load.num

    def held_tokens(self, arrival: Arrival) -> int:
        """Tokens of the prompt that the device has here, or it and its host, as of at most `staleness_s` ago."""
        keys = arrival.keys_for(self.scheduler.manager)
        return self._known_prefixes().peek_hit(keys, arrival.row.prompt_tokens)

    def _known_prefixes(self) -> KVCacheManager | PrefixSnapshot:
        if self._host is not None:
            self._host.settle()
        if self._snapshot is None:
            return self._prefixes
        if self._env.now - self._snapshot_s >= self._staleness_s:
            self._snapshot.refresh()
            self._snapshot_s = self._env.now
        return self._snapshot

    def take(self, arrival: Arrival) -> None:
        """A request is sent here; it may be turned away at the door."""
        request = arrival.request_for(self.scheduler.manager)
        self._arrivals[request] = arrival
        self.load.change(1, self._env.now)
        max_model_len = self.deployment.scheduler_settings.max_model_len
        if request.max_tokens > max_model_len:
            self._turn_away(request, too_long(max_model_len))
        else:
            self._deliver(request)

    def _turn_away(self, request: Request, reason: str) -> None:
        self.recorder.rejected(request, reason)
        self.rejected_after_s += self._env.now - request.arrival_s
        self._leave([request])

    def _deliver(self, request: Request) -> None:
        self._inbox.deliver(request)

    def _leave(self, requests: list[Request]) -> None:
        self.load.change(-len(requests), self._env.now)
        arrivals = [self._arrivals.pop(request) for request in requests]
        self.num_retries += [arrival.num_retries for arrival in arrivals]
        self._owner.left(arrivals, self)
        if not self.load.num:
            self.lives.emptied()

    def result(self, *, may_lose: bool = False, num_warmups: int = 0) -> Result:
        """Its run over all of its lives, as if it had stood alone; it counts lost requests where any may have been.

        The first `num_warmups` requests that it got count in no latency.
        """
        tables = self.recorder.tables()
        capacity, tally = self.deployment.describe(), self._host_tally()
        summary = summarize(**tables, capacity=capacity, host=tally, may_lose=may_lose, num_warmups=num_warmups)
        return Result(
            scenario=self.deployment.resolved_scenario(),
            capacity=capacity,
            tables=tables,
            summary=summary,
            host_tally=tally,
        )

    def _host_tally(self) -> HostTally | None:
        """Of its host memory, over all of its lives."""
        return None if self._host is None else add_up_lives([*self._tallies, self._host.tally()])

    # A replica is a `StepObserver`.

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """A batch is about to run."""
        self.recorder.planned(start_s, scheduler, batch)
        rejected = scheduler.plan.rejected
        if rejected:
            self.rejected_after_s += sum(start_s - request.arrival_s for request in rejected)
            self._leave(rejected)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """A batch has run, and these requests ended with it."""
        self.recorder.settled(start_s, end_s, num_steps, batch, ended)
        if ended:
            self._leave(ended)
