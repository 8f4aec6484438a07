"""Our side of tokens that are computed elsewhere, or go on there: what `connector.py` does on vLLM's side."""

from collections.abc import Generator, Sequence
from typing import Any

import simpy
from simpy.events import Event

from kvcache.manager import KVCacheManager
from kvcache.managers import Load
from simulator.batch import Batch
from simulator.latency import ConstantStepTimes
from simulator.loading import NOTHING, LendingScheduler, LoadingScheduler, Offer
from simulator.replica import Inbox, StepObserver, serve, wait_until
from simulator.request import Request
from simulator.scheduler import Scheduler, SchedulerSettings

__all__ = ["Outside"]


class Outside:
    """Has the beginnings of some requests, once each, and reads what others leave; steps take a second."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        requests = scenario["requests"]
        self._offers = {request["id"]: request["remote"] for request in requests if "remote" in request}
        self._lent = {request["id"]: request["lent"] for request in requests if "lent" in request}
        # A worker's report comes with the output of a step; that is known one step later where steps overlap.
        self._settled_after_s = 2.0 if scenario.get("async_scheduling") else 1.0
        self._env = simpy.Environment()
        self._inbox: Inbox
        self._observer: StepObserver

    @property
    def is_there(self) -> bool:
        """Whether a scenario says anything of it."""
        return bool(self._offers or self._lent)

    def scheduler(self, manager: KVCacheManager, settings: SchedulerSettings) -> Scheduler:
        """The scheduler that has a source, or is one."""
        if self._lent:
            return LendingScheduler(manager, settings)
        return LoadingScheduler(manager, settings, (), self)

    def run(
        self,
        scheduler: Scheduler,
        requests: Sequence[Request],
        observer: StepObserver,
        in_steps: dict[int, tuple[int, int]],
    ) -> None:
        """Serve all requests; `in_steps` gets (free blocks, waiting requests) in the middle of each step."""
        env, self._observer = self._env, observer
        self._inbox = Inbox(env, scheduler)

        def deliver() -> Generator[Event, object, None]:
            for request in requests:
                yield wait_until(env, request.arrival_s)
                self._inbox.deliver(request)

        def look() -> Generator[Event, object, None]:
            yield env.timeout(0.5)
            while any(request.finish_s is None for request in requests):
                in_steps[round(env.now - 0.5)] = scheduler.manager.pool.num_free, len(scheduler.waiting)
                yield env.timeout(1.0)

        env.process(serve(env, scheduler, ConstantStepTimes(1.0), self._inbox, self, planning_s=1.0))
        env.process(deliver())
        env.process(look())
        env.run()

    def _tell(self, request: Request, seconds: float) -> Generator[Event, object, None]:
        yield wait_until(self._env, self._env.now + seconds)
        self._inbox.loaded(request)

    # It is a `KVSource`.

    def offer(self, request: Request, hit_tokens: int) -> Offer:
        remote = self._offers.get(request.request_id)
        return NOTHING if remote is None else Offer(remote["tokens"], hit_tokens)

    def start(self, request: Request, loads: list[Load]) -> None:
        remote = self._offers.pop(request.request_id)
        if loads:
            self._env.process(self._tell(request, remote["steps"] + self._settled_after_s))

    # And a `StepObserver`, for it sees requests end.

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        self._observer.planned(start_s, scheduler, batch)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        self._observer.settled(start_s, end_s, num_steps, batch, ended)
        for request in ended:
            if request.request_id in self._lent:
                self._env.process(self._tell(request, self._lent[request.request_id] + 1.0))
