"""Our side of tokens that are computed elsewhere: a source that offers what a scenario says, as `connector.py` does."""

from collections.abc import Generator, Sequence
from typing import Any

import simpy
from simpy.events import Event

from kvcache.managers import Load
from simulator.latency import ConstantStepTimes
from simulator.loading import NOTHING, Offer
from simulator.replica import Inbox, StepObserver, serve, wait_until
from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["RemoteSource", "run_with_source"]


class RemoteSource:
    """Has the beginnings of some requests, once each; steps take a second."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self._offers = {request["id"]: request["remote"] for request in scenario["requests"] if "remote" in request}
        # A worker's report comes with the output of a step; that is known one step later where steps overlap.
        self._settled_after_s = 2.0 if scenario.get("async_scheduling") else 1.0
        self.env: simpy.Environment
        self.inbox: Inbox

    def offer(self, request: Request, hit_tokens: int) -> Offer:
        remote = self._offers.get(request.request_id)
        return NOTHING if remote is None else Offer(remote["tokens"], hit_tokens)

    def start(self, request: Request, loads: list[Load]) -> None:
        remote = self._offers.pop(request.request_id)
        if loads:
            self.env.process(self._load(request, remote["steps"] + self._settled_after_s))

    def _load(self, request: Request, seconds: float) -> Generator[Event, object, None]:
        yield wait_until(self.env, self.env.now + seconds)
        self.inbox.loaded(request)


def run_with_source(
    scheduler: Scheduler,
    source: RemoteSource,
    requests: Sequence[Request],
    observer: StepObserver,
    in_steps: dict[int, tuple[int, int]],
) -> None:
    """Serve all requests; `in_steps` gets (free blocks, waiting requests) in the middle of each step."""
    source.env = env = simpy.Environment()
    source.inbox = inbox = Inbox(env, scheduler)

    def deliver() -> Generator[Event, object, None]:
        for request in requests:
            yield wait_until(env, request.arrival_s)
            inbox.deliver(request)

    def look() -> Generator[Event, object, None]:
        yield env.timeout(0.5)
        while any(request.finish_s is None for request in requests):
            in_steps[round(env.now - 0.5)] = scheduler.manager.pool.num_free, len(scheduler.waiting)
            yield env.timeout(1.0)

    env.process(serve(env, scheduler, ConstantStepTimes(1.0), inbox, observer, planning_s=1.0))
    env.process(deliver())
    env.process(look())
    env.run()
