"""Explain one request of a fleet: replay all of it, and watch the replica to which that request was sent.

The other replicas are replayed, too: when a request is sent where may depend on what goes on at all of them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import simpy

from kvcache.watching import WatchedManager
from simulator.batch import Batch
from simulator.deployment import Deployment, deploy_all
from simulator.engine import workload_of
from simulator.explain import check_is_watchable, first_of_id
from simulator.fleet import Fleet, Replica, begin
from simulator.request import Request
from simulator.router import Router
from simulator.scenario import Scenario, ScenarioError
from simulator.scheduler import Scheduler
from simulator.story import Story
from simulator.watcher import Ended, Watcher
from workloads import Trace

__all__ = ["ReplayedFleet"]


@dataclass(frozen=True)
class ReplayedFleet:
    """Replicas that are up from the beginning to the end, and their router; to be replayed once."""

    scenarios: Sequence[Scenario]
    router: Router
    staleness_s: float = 0.0

    def explain(
        self,
        request_id: str,
        number: int,
        trace: Trace | None = None,
        on_progress: Callable[[float, int], None] | None = None,
    ) -> Story:
        """Replay until the request of this id that is the first to come to the replica of this number has ended.

        Arguments and errors are those of `simulator.explain.explain`.
        """
        trace = trace or workload_of(self.scenarios[0])
        env, deployments = simpy.Environment(), deploy_all(self.scenarios)
        for deployment in deployments:
            check_is_watchable(deployment)
        fleet = _WatchedFleet(env, deployments, self.router, self.staleness_s, on_progress, number)
        replica = fleet.watched
        watcher = Watcher(replica.scheduler, replica.manager, first_of_id(request_id, trace, replica.scheduler))
        replica.watcher = watcher
        begin(env, trace, fleet.submit, fleet.close)
        with suppress(Ended):
            env.run()
        if watcher.story is None:
            raise ScenarioError(f"request {request_id!r} does not end on replica {number} in the replay of this run")
        return replace(watcher.story, replica=number)


class _WatchedReplica(Replica):
    """A replica of which a watcher sees all that it would see of a single server."""

    manager: WatchedManager
    watcher: Watcher
    """Is there before the first request comes."""

    def _new_scheduler(self) -> tuple[Scheduler, None]:
        self.manager = WatchedManager(self.deployment.layout, self.deployment.cache_settings)
        return self.deployment.new_scheduler(self.manager), None

    def _deliver(self, request: Request) -> None:
        super()._deliver(request)
        self.watcher.arrived(request, self._env.now)

    def _turn_away(self, request: Request, reason: str) -> None:
        self.watcher.rejected(request, reason)
        super()._turn_away(request, reason)

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        self.watcher.planned(start_s, scheduler, batch)
        super().planned(start_s, scheduler, batch)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        self.watcher.settled(start_s, end_s, num_steps, batch, ended)
        super().settled(start_s, end_s, num_steps, batch, ended)


class _WatchedFleet(Fleet):
    """A fleet of which one replica is watched."""

    watched: _WatchedReplica

    def __init__(
        self,
        env: simpy.Environment,
        deployments: Sequence[Deployment],
        router: Router,
        staleness_s: float,
        on_progress: Callable[[float, int], None] | None,
        number: int,
    ) -> None:
        self._number = number
        super().__init__(env, deployments, router, staleness_s, on_progress)

    def _new_replica(self, deployment: Deployment) -> Replica:
        number = len(self.replicas)
        if number != self._number:
            return super()._new_replica(deployment)
        self.watched = _WatchedReplica(self._env, number, deployment, self, self._staleness_s)
        return self.watched
