"""Serve a few requests on a small server, and have the life of one of them told."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from kvcache.manager import KVCacheManager
from kvcache.watching import WatchedManager
from simulator.batch import Batch
from simulator.engine import run_to_the_end
from simulator.latency import ConstantStepTimes
from simulator.recorder import Recorder
from simulator.request import Request
from simulator.running import holding
from simulator.scheduler import Scheduler
from simulator.story import Attempt, Cause, HitCut, Story, Wait
from simulator.watcher import Ended, Watcher
from tests.simulator.conftest import Arrival, new_request, new_scheduler


def arrivals_of(scheduler: Scheduler, requests: Sequence[Arrival]) -> dict[str, Request]:
    """The requests "a", "b", "c" ... in the order in which they are written down."""
    return {
        name: new_request(scheduler, name, serial, arrival)
        for serial, (name, arrival) in enumerate(zip(ascii_lowercase[: len(requests)], requests, strict=True))
    }


@dataclass
class Both:
    """A recorder and a watcher of the same steps; each look finds the pool in order."""

    recorder: Recorder
    watcher: Watcher | None

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        scheduler.manager.check_integrity([request.blocks for request in holding(scheduler)])
        self.recorder.planned(start_s, scheduler, batch)
        if self.watcher is None:
            return
        try:
            self.watcher.planned(start_s, scheduler, batch)
        except Ended:
            self.watcher = None

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        self.recorder.settled(start_s, end_s, num_steps, batch, ended)
        if self.watcher is None:
            return
        try:
            self.watcher.settled(start_s, end_s, num_steps, batch, ended)
        except Ended:
            self.watcher = None  # the run goes on, as if nobody had watched


def serve(
    requests: Sequence[Arrival], name: str | None, step_s: float = 1.0, **server
) -> tuple[Recorder, Story | None]:
    """What was recorded of a whole run, and the story of the request of this name."""
    scheduler = new_scheduler(manager_type=KVCacheManager if name is None else WatchedManager, **server)
    named = arrivals_of(scheduler, requests)
    arrivals = iter(sorted(named.values(), key=lambda request: request.arrival_s))
    recorder, watcher = Recorder(scheduler), None
    if name is not None:
        watcher = Watcher(scheduler, scheduler.manager, arrivals_of(scheduler, requests)[name])
        arrivals = watcher.watch(arrivals)
    run_to_the_end(scheduler, ConstantStepTimes(step_s), arrivals, Both(recorder, watcher))
    return recorder, None if watcher is None else watcher.story


def tell(requests: Sequence[Arrival], name: str, **server) -> Story:
    """The story of one request."""
    _, story = serve(requests, name, **server)
    assert story is not None
    return story


def waits(story: Story, attempt: int = 0) -> list[tuple[str, str, float, float]]:
    """(cause, who stood first, from, to) of each wait."""
    return [(wait.kind, wait.head, wait.start_s, wait.end_s) for wait in story.attempts[attempt].waits]


def last_wait(story: Story) -> Wait:
    return story.attempts[0].waits[-1]


def cut_of(story: Story, attempt: int = -1) -> HitCut:
    """Who cut the hit in the end."""
    return admission_of(story, attempt).cuts[-1]


def admission_of(story: Story, attempt: int = -1):
    admission = [made for made in story.attempts if made.admission is not None][attempt].admission
    assert admission is not None
    return admission


def cause_of(story: Story, attempt: int = -1) -> Cause:
    """Why the hit was cut in the end."""
    cause = cut_of(story, attempt).cause
    assert cause is not None
    return cause


def block_of(cause: Cause) -> tuple[int, int]:
    return cause.start_token, cause.end_token


def preempted(attempt: Attempt):
    assert attempt.preemption is not None
    return attempt.preemption
