"""Several replicas behind a router: `simulate_fleet(scenarios, router)`.

```
arrivals ──► Fleet.submit ──► router ──► Replica.take ──► inbox ──► waiting queue ...
                 │ None        ▲ views                      │
                 ▼             └────── ended requests ◄─────┘
           the fleet's queue ◄──────── requests of a replica that failed
```

A replica is the process that serves a single server, unchanged: it does not know that there are others. It has several
lives if it fails and returns. What makes replicas come and go is not here: see `simulator.operations`.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence

import simpy
from simpy.events import Event

from kvcache.errors import InvariantError
from simulator.arrival import Arrival
from simulator.closed_loop import ClosedLoop, SessionRuns
from simulator.closed_loop_options import traffic_of
from simulator.deployment import Deployment, deploy_all
from simulator.fleet_checks import check_fleet
from simulator.fleet_replica import Replica
from simulator.fleet_result import FleetResult, all_requests, combine
from simulator.lives import State
from simulator.load import Load
from simulator.operations import QUIET, Operations, operate
from simulator.replica import wait_until
from simulator.request import Request
from simulator.result import Result
from simulator.router import RoundRobin, Router, router_name
from simulator.scenario import Scenario
from simulator.session_measures import with_sessions
from simulator.table import Columns
from workloads import SessionTrace, Trace

__all__ = ["Fleet", "Replica", "begin", "sessions_of", "simulate_closed_loop", "simulate_fleet"]

REPLICA_FAILED = "the replica where it was failed"
"""Why a request is lost that is not tried again."""


def simulate_fleet(
    scenarios: Sequence[Scenario],
    router: Router,
    staleness_s: float = 0.0,
    *,
    operations: Operations = QUIET,
    trace: Trace | SessionTrace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> FleetResult:
    """Replay a workload on several replicas, one for each scenario; the first one says what the workload is.

    `trace` replaces it. The router knows what replicas hold as of at most `staleness_s` seconds ago. `operations` say
    which of them fail and are drained, and how many there are.
    `on_progress(now_s, num_ended)` is called now and then.
    Raises ValueError with one line for a person where a scenario or the trace is wrong.
    """
    if not scenarios:
        raise ValueError("a fleet needs at least one replica")
    traffic = traffic_of(scenarios[0], trace)
    fleet, results, sessions = _serve(scenarios, traffic, router, staleness_s, operations, on_progress)
    stated = {"num_replicas": len(scenarios), "router": router_name(router), "router_staleness_s": staleness_s}
    result = combine(fleet, results, stated, all_requests(fleet, results))
    return with_sessions(result, sessions)


def simulate_closed_loop(
    scenario: Scenario,
    trace: Trace | SessionTrace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> Result:
    """Replay closed-loop traffic on a single server: a fleet of one, without its router's measures.

    Arguments and errors are those of `simulator.engine.simulate`.
    """
    _, (result,), sessions = _serve([scenario], traffic_of(scenario, trace), RoundRobin(), 0.0, QUIET, on_progress)
    return with_sessions(result, sessions)


def _serve(
    scenarios: Sequence[Scenario],
    traffic: Trace | ClosedLoop,
    router: Router,
    staleness_s: float,
    operations: Operations,
    on_progress: Callable[[float, int], None] | None,
) -> tuple["Fleet", list[Result], Columns | None]:
    """The fleet when all is over, each replica's result, and the table of the sessions if they are measured."""
    env = simpy.Environment()
    fleet = Fleet(env, deploy_all(scenarios), router, staleness_s, on_progress, operations)
    runs = begin(env, traffic, fleet.submit, fleet.close)
    operate(env, fleet)
    env.run()
    while fleet.give_up():
        env.run()
    num_warmups = math.ceil(scenarios[0].num_left_out / len(scenarios))  # each replica's share
    results = [replica.result(may_lose=operations != QUIET, num_warmups=num_warmups) for replica in fleet.replicas]
    check_fleet(fleet, results)
    return fleet, results, sessions_of(runs, fleet.load.num)


def begin(
    env: simpy.Environment, traffic: Trace | ClosedLoop, submit: Callable[[Arrival], None], on_over: Callable[[], None]
) -> SessionRuns | None:
    """Let traffic come, request by request; `on_over` is called when none comes any more. Gives back its sessions."""
    if isinstance(traffic, Trace):
        env.process(_arrive(env, traffic, submit, on_over))
        return None
    return SessionRuns(env, traffic, submit, on_over)


def sessions_of(runs: SessionRuns | None, num_in_flight: int) -> Columns | None:
    """The table of what `begin` gave back, once it is checked; None where sessions are not measured."""
    if runs is None:
        return None
    runs.check(num_in_flight)
    return runs.table()


def _arrive(
    env: simpy.Environment, trace: Trace, submit: Callable[[Arrival], None], on_over: Callable[[], None]
) -> Generator[Event, object, None]:
    for serial, row in enumerate(trace):
        if row.arrival_s > env.now:
            yield wait_until(env, row.arrival_s)
        submit(Arrival(row, trace.prefix_block_tokens, serial))
    on_over()


class Fleet:
    """Replicas, the router before them, and the requests that wait for it."""

    def __init__(
        self,
        env: simpy.Environment,
        deployments: Sequence[Deployment],
        router: Router,
        staleness_s: float = 0.0,
        on_progress: Callable[[float, int], None] | None = None,
        operations: Operations = QUIET,
    ) -> None:
        """`operations`: how many times a request may be tried again, and how long a replica takes to start.

        The first deployment is that of replicas that are added.
        """
        self.operations = operations
        self._env = env
        self._router = router
        self._staleness_s = staleness_s
        self._on_progress = on_progress
        self._new_deployment = deployments[0]
        self._next_change: Event | None = None
        self.replicas: list[Replica] = []
        """All that ever were, in the order of their numbers."""
        self.serving: list[Replica] = []
        """Those of them that take requests."""
        self.queue: deque[Arrival] = deque()
        """Who waits for the router to choose."""
        self.load = Load()
        """Requests that have arrived and not ended."""
        self.num_arrived = 0
        self._replica_of: dict[int, Replica] = {}
        """Where each request in flight is, by its serial."""
        self._is_routing = False
        self._is_closed = False
        self.lost_in_queue: list[Arrival] = []
        """Requests that were lost while they waited here, for the first time or between two tries."""
        self.lost_after_s = 0.0
        """How long those were there who were lost, in all."""
        for deployment in deployments:
            self._add(deployment).lives.start(is_warm=True)

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
        while self.queue and self.serving:
            chosen = self._router.choose(self.queue[0], self.serving)
            if chosen is None:
                break
            self._send(self.queue.popleft(), self.serving[chosen])
        self._is_routing = False

    def _send(self, arrival: Arrival, replica: "Replica") -> None:
        if arrival.serial in self._replica_of:
            raise InvariantError(f"one-replica: request {arrival.row.request_id!r} is on two replicas")
        self._replica_of[arrival.serial] = replica
        replica.take(arrival)

    def left(self, arrivals: Iterable[Arrival], replica: "Replica") -> None:
        """These requests have ended at a replica: they finished or were rejected."""
        self._end(self._taken_from(replica, arrivals))
        self._route()

    def cut_off(self, requests: dict[Request, Arrival], replica: "Replica") -> None:
        """These requests were at a replica that failed: they are routed again before all others, or lost."""
        arrivals = self._taken_from(replica, requests.values())
        max_retries = self.operations.max_retries
        again = [arrival for arrival in arrivals if arrival.num_retries < max_retries]
        lost = {request: arrival for request, arrival in requests.items() if arrival.num_retries >= max_retries}
        for arrival in again:
            arrival.num_retries += 1
        replica.num_retried += len(again)
        self.queue.extendleft(reversed(again))
        replica.lose(lost, REPLICA_FAILED)
        self._lose(lost.values(), self._env.now)
        self._route()

    def _taken_from(self, replica: "Replica", arrivals: Iterable[Arrival]) -> list[Arrival]:
        """These requests, which are at a replica no more."""
        taken = list(arrivals)
        for arrival in taken:
            if self._replica_of.pop(arrival.serial, None) is not replica:
                raise InvariantError(f"one-replica: request {arrival.row.request_id!r} ended where it was not")
        return taken

    def _lose(self, arrivals: Collection[Arrival], now_s: float) -> None:
        self.lost_after_s += sum(now_s - arrival.row.arrival_s for arrival in arrivals)
        self._end(arrivals, now_s)

    def _end(self, arrivals: Collection[Arrival], now_s: float | None = None) -> None:
        """These requests leave for good, now or then: finished, rejected or lost. There is no other way out."""
        for arrival in arrivals:
            arrival.on_left()
        self.load.change(-len(arrivals), self._env.now if now_s is None else now_s)
        if self._on_progress is not None:
            self._on_progress(self._env.now, self.num_arrived - self.load.num)

    # Coming to an end.

    def close(self) -> None:
        """No request arrives any more."""
        self._is_closed = True

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen any more, so that nobody need watch."""
        return self._is_closed and not self.load.num

    def give_up(self) -> bool:
        """Nothing more happens by itself: who still waits for a replica is lost. False if nobody waits."""
        waiting = list(self.queue)
        if waiting:
            self.queue.clear()
            self.lost_in_queue += waiting
            self._lose(waiting, self.changed_s)
        return bool(waiting)

    @property
    def changed_s(self) -> float:
        """When a request came or left last, or a replica changed its state."""
        last_s = [at_s for replica in self.replicas for at_s, _ in replica.lives.changes[-1:]]
        return max(self.load.changed_s, *last_s)

    # Replicas that come and go.

    def add(self) -> "Replica":
        """One more replica, off until it is started."""
        return self._add(self._new_deployment)

    def _add(self, deployment: Deployment) -> "Replica":
        replica = self._new_replica(deployment)
        self.replicas.append(replica)
        return replica

    def _new_replica(self, deployment: Deployment) -> "Replica":
        number, cold_start_s = len(self.replicas), self.operations.cold_start_s
        return Replica(self._env, number, deployment, self, self._staleness_s, cold_start_s)

    def next_change(self) -> Event:
        """Happens when a replica changes its state."""
        if self._next_change is None:
            self._next_change = self._env.event()
        return self._next_change

    def changed(self, state: State) -> None:
        """A replica has changed its state."""
        self.serving = [replica for replica in self.replicas if replica.lives.state is State.UP]
        if self._next_change is not None:
            self._next_change.succeed()
            self._next_change = None
        if state is State.UP:
            self._route()
