"""Several replicas behind a router: `simulate_fleet(scenarios, router)`.

```
arrivals ──► Fleet.submit ──► router ──► Replica.take ──► inbox ──► waiting queue ...
                 │ None        ▲ views                      │
                 ▼             └────── ended requests ◄─────┘
           the fleet's queue
```

A replica is the process that serves a single server, unchanged: it does not know that there are others.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence

import simpy
from simpy.events import Event

from kvcache.errors import InvariantError
from kvcache.manager import KVCacheManager
from kvcache.prefix_snapshot import PrefixSnapshot
from simulator.arrival import Arrival
from simulator.batch import Batch
from simulator.deployment import Deployment, deploy
from simulator.engine import too_long, workload_of
from simulator.fleet_checks import check_fleet
from simulator.fleet_result import FleetResult, combine
from simulator.load import Load
from simulator.metrics import summarize
from simulator.recorder import Recorder
from simulator.replica import Inbox, serve, wait_until
from simulator.request import Request
from simulator.result import Result
from simulator.router import Router, router_name
from simulator.scenario import Scenario
from simulator.scheduler import Scheduler
from workloads import Trace

__all__ = ["Fleet", "Replica", "arrive", "simulate_fleet"]


def simulate_fleet(
    scenarios: Sequence[Scenario],
    router: Router,
    staleness_s: float = 0.0,
    *,
    trace: Trace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> FleetResult:
    """Replay a workload on several replicas, one for each scenario; the first one says what the workload is.

    `trace` replaces it. The router knows what replicas hold as of at most `staleness_s` seconds ago.
    `on_progress(now_s, num_ended)` is called now and then.
    Raises ValueError with one line for a person where a scenario or the trace is wrong.
    """
    if not scenarios:
        raise ValueError("a fleet needs at least one replica")
    alike: dict[Scenario, Deployment] = {}
    deployments = [alike.get(scenario) or alike.setdefault(scenario, deploy(scenario)) for scenario in scenarios]
    env = simpy.Environment()
    fleet = Fleet(env, deployments, router, staleness_s, on_progress)
    env.process(arrive(env, trace or workload_of(scenarios[0]), fleet.submit))
    env.run()
    results = [replica.result() for replica in fleet.replicas]
    check_fleet(fleet, results)
    routing = {"router": router_name(router), "router_staleness_s": staleness_s}
    return combine(results, [replica.load for replica in fleet.replicas], fleet.load, routing)


def arrive(env: simpy.Environment, trace: Trace, submit: Callable[[Arrival], None]) -> Generator[Event, object, None]:
    """Submit each request of a trace at its time."""
    for serial, row in enumerate(trace):
        if row.arrival_s > env.now:
            yield wait_until(env, row.arrival_s)
        submit(Arrival(row, trace.prefix_block_tokens, serial))


class Fleet:
    """Replicas, the router before them, and the requests that wait for it."""

    def __init__(
        self,
        env: simpy.Environment,
        deployments: Sequence[Deployment],
        router: Router,
        staleness_s: float = 0.0,
        on_progress: Callable[[float, int], None] | None = None,
        new_replica: "Callable[..., Replica] | None" = None,
    ) -> None:
        """`new_replica` makes one of another kind, from the arguments of `Replica`."""
        self._env = env
        self._router = router
        self._on_progress = on_progress
        self.replicas = [
            (new_replica or Replica)(env, str(number), deployment, self._left, staleness_s)
            for number, deployment in enumerate(deployments)
        ]
        self.queue: deque[Arrival] = deque()
        """Who waits for the router to choose."""
        self.load = Load()
        """Requests that have arrived and not ended."""
        self.num_arrived = 0
        self._replica_of: dict[int, Replica] = {}
        """Where each request in flight is, by its serial."""
        self._is_routing = False

    def submit(self, arrival: Arrival) -> None:
        """A request arrives now."""
        self.num_arrived += 1
        self.load.change(1, self._env.now)
        self.queue.append(arrival)
        if len(self.queue) == 1:
            self._route()

    def _route(self) -> None:
        """Send who waits, in order of arrival, until the router lets one wait."""
        if self._is_routing:
            return  # somebody was turned away at the door meanwhile: the loop below goes on
        self._is_routing = True
        while self.queue:
            chosen = self._router.choose(self.queue[0], self.replicas)
            if chosen is None:
                break
            self._send(self.queue.popleft(), self.replicas[chosen])
        self._is_routing = False

    def _send(self, arrival: Arrival, replica: "Replica") -> None:
        if arrival.serial in self._replica_of:
            raise InvariantError(f"one-replica: request {arrival.row.request_id!r} is on two replicas")
        self._replica_of[arrival.serial] = replica
        replica.take(arrival)

    def _left(self, arrivals: list[Arrival], replica: "Replica") -> None:
        """These requests have ended at a replica."""
        for arrival in arrivals:
            if self._replica_of.pop(arrival.serial, None) is not replica:
                raise InvariantError(f"one-replica: request {arrival.row.request_id!r} ended where it was not")
        self.load.change(-len(arrivals), self._env.now)
        if self._on_progress is not None:
            self._on_progress(self._env.now, self.num_arrived - self.load.num)
        self._route()


class Replica:
    """One server of a fleet: its process, what it records, and what a router sees of it."""

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        deployment: Deployment,
        on_left: Callable[[list[Arrival], "Replica"], None],
        staleness_s: float = 0.0,
    ) -> None:
        """`on_left` is told of the requests that ended here."""
        self.name = name
        self.deployment = deployment
        self.scheduler = self._new_scheduler()
        self.recorder = Recorder(self.scheduler)
        self.max_num_seqs = deployment.scheduler_settings.max_num_seqs
        self.load = Load()
        """Requests that were sent here and have not ended."""
        self.rejected_after_s = 0.0
        """How long those were there who were turned away, in all."""
        self._env = env
        self._on_left = on_left
        self._arrivals: dict[Request, Arrival] = {}
        """Of the requests that are here."""
        self._staleness_s = staleness_s
        self._snapshot = PrefixSnapshot(self.scheduler.manager) if staleness_s else None
        self._snapshot_s = -staleness_s
        self._inbox = Inbox(env, self.scheduler)
        env.process(serve(env, self.scheduler, deployment.step_times, self._inbox, self))

    def _new_scheduler(self) -> Scheduler:
        return self.deployment.new_scheduler()

    # A replica is a `ReplicaView`.

    @property
    def num_in_flight(self) -> int:
        """Requests that were sent here and have not ended."""
        return self.load.num

    def held_tokens(self, arrival: Arrival) -> int:
        """Tokens of the prompt that would be hit here, as of at most `staleness_s` ago."""
        keys = arrival.keys_for(self.scheduler.manager)
        return self._known_prefixes().peek_hit(keys, arrival.row.prompt_tokens)

    def _known_prefixes(self) -> KVCacheManager | PrefixSnapshot:
        if self._snapshot is None:
            return self.scheduler.manager
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
            self.recorder.rejected(request, too_long(max_model_len))
            self.rejected_after_s += self._env.now - request.arrival_s
            self._leave([request])
        else:
            self._inbox.deliver(request)

    def _leave(self, requests: list[Request]) -> None:
        self.load.change(-len(requests), self._env.now)
        self._on_left([self._arrivals.pop(request) for request in requests], self)

    def result(self) -> Result:
        """Its run, as if it had stood alone."""
        tables = {
            "requests": self.recorder.requests_table(),
            "steps": self.recorder.steps_table(),
            "token_gaps": self.recorder.token_gaps_table(),
        }
        capacity = self.deployment.describe()
        return Result(
            scenario=self.deployment.resolved_scenario(),
            capacity=capacity,
            tables=tables,
            summary=summarize(**tables, capacity=capacity),
        )

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
