"""One replica in simulated time: decide, let time pass, settle."""

from bisect import bisect_left
from collections.abc import Generator
from itertools import accumulate
from typing import Protocol

import simpy
from simpy.events import URGENT, Event, EventPriority

from simulator.batch import Batch
from simulator.latency import StepTimes
from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["STOPPED", "Inbox", "StepObserver", "run_replica", "run_replica_async", "serve", "wait_until"]

Steps = Generator[Event, object, int]
NO_TIME = [0.0]
STOPPED = "stopped"
"""Cause of an interrupt that ends a replica at once, whatever runs; it comes out of the replica's process again."""


class StepObserver(Protocol):
    """Whoever wants to see every step: a recorder, a test."""

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """A batch is about to run; the scheduler's plan and counters are as the server's at that moment."""

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """`num_steps` steps of the batch have run, from `start_s` to `end_s`; these requests ended."""


class Inbox:
    """Where requests reach a replica, and contents of blocks: it wakes if it sleeps."""

    def __init__(self, env: simpy.Environment, scheduler: Scheduler) -> None:
        self._env = env
        self._scheduler = scheduler
        self._idle: Event | None = None
        self._in_run: simpy.Process | None = None

    def deliver(self, request: Request) -> None:
        """A request arrives now."""
        self._scheduler.add(request)
        self._wake()

    def loaded(self, request: Request) -> None:
        """The contents of a request's blocks, which it was given for them, are there now."""
        self._scheduler.loaded(request)
        self._wake()

    def _wake(self) -> None:
        if self._in_run is not None:
            self._in_run.interrupt()
            self._in_run = None
        elif self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def next_arrival(self) -> Event:
        """Happens with the next arrival."""
        self._idle = self._env.event()
        return self._idle

    def let_pass(self, durations_s: list[float]) -> Steps:
        """Wait for all steps, or for the end of the step in which a request arrives; gives back how many ran."""
        env = self._env
        if len(durations_s) == 1:
            yield env.timeout(durations_s[0])
            return 1
        start_s = env.now
        ends_s = list(accumulate(durations_s))
        self._in_run = env.active_process
        try:
            yield env.timeout(ends_s[-1])
        except simpy.Interrupt as interrupt:
            if interrupt.cause == STOPPED:
                self._in_run = None
                raise
            # At equal times arrivals come before the step, so one that starts now is cut off too.
            steps_done = min(bisect_left(ends_s, env.now - start_s) + 1, len(ends_s))
            yield env.timeout(max(0.0, start_s + ends_s[steps_done - 1] - env.now))
            return steps_done
        self._in_run = None
        return len(durations_s)


def run_replica(
    env: simpy.Environment, scheduler: Scheduler, step_times: StepTimes, inbox: Inbox, observer: StepObserver
) -> Generator[Event, object, None]:
    """Serve one replica for ever: plan a step, let it run, settle it."""
    while True:
        batch = scheduler.schedule(now_s=env.now)
        if batch is None:
            yield inbox.next_arrival()
            continue
        start_s = env.now
        observer.planned(start_s, scheduler, batch)
        steps_done = 1
        if not scheduler.plan.only_rejects:
            durations_s = step_times.durations_s(batch)
            try:
                steps_done = yield from inbox.let_pass(durations_s)
            except simpy.Interrupt:
                _settle_what_ran(scheduler, observer, batch, (start_s, env.now), durations_s)
                raise
        if steps_done > 1:
            scheduler.run_on(steps_done - 1)
        ended = scheduler.complete(now_s=env.now)
        observer.settled(start_s, env.now, steps_done, batch, ended)


def run_replica_async(
    env: simpy.Environment,
    scheduler: Scheduler,
    step_times: StepTimes,
    inbox: Inbox,
    observer: StepObserver,
    planning_s: float = 0.0,
) -> Generator[Event, object, None]:
    """Serve one replica for ever: while a step runs, the next one is planned already.

    ```
    plan 1 | plan 2 | plan 3 | plan 4
           | run 1  | run 2  | run 3      settled when its run ends, before the next plan
    ```

    Planning takes `planning_s` where no run hides it.
    """
    running: Batch | None = None
    num_news = 0
    while True:
        start_s = env.now
        durations_s = NO_TIME if running is None or not running.num_tokens else step_times.durations_s(running)
        try:
            if scheduler.num_news > num_news:
                durations_s = durations_s[:1]  # who arrived since it was planned is in the next plan
            elif len(durations_s) > 1:
                # Equal steps are planned at their turn, each while the one before it runs; the last of
                # them runs while the next batch is planned.
                steps_done = yield from inbox.let_pass(durations_s[:-1])
                scheduler.run_on(steps_done)
                durations_s = durations_s[: steps_done + 1]
            num_news = scheduler.num_news
            planned = scheduler.schedule(now_s=env.now)
            if planned is not None:
                observer.planned(env.now, scheduler, planned)
            elif running is None:
                yield inbox.next_arrival()
                continue
            yield env.timeout(durations_s[-1] or planning_s)
        except simpy.Interrupt:
            if running is not None:
                _settle_what_ran(scheduler, observer, running, (start_s, env.now), durations_s)
            raise
        if running is not None:
            ended = scheduler.complete(now_s=env.now)
            observer.settled(start_s, env.now, len(durations_s), running, ended)
        running = planned


def _settle_what_ran(
    scheduler: Scheduler,
    observer: StepObserver,
    batch: Batch,
    span_s: tuple[float, float],
    durations_s: list[float],
) -> None:
    """A replica stops while a batch runs, from its start until now: of several equal steps those count that are over.

    The one that runs is lost, also if it would end at this very moment.
    """
    start_s, now_s = span_s
    ends_s = list(accumulate(durations_s))
    num_steps = min(bisect_left(ends_s, now_s - start_s), len(ends_s) - 1)
    if num_steps:
        scheduler.in_flight[0].num_steps -= num_steps
        observer.settled(start_s, start_s + ends_s[num_steps - 1], num_steps, batch, [])


def serve(
    env: simpy.Environment,
    scheduler: Scheduler,
    step_times: StepTimes,
    inbox: Inbox,
    observer: StepObserver,
    planning_s: float = 0.0,
) -> Generator[Event, object, None]:
    """Serve one replica until it is interrupted, with synchronous or asynchronous scheduling as its settings say."""
    if scheduler.settings.async_scheduling:
        return run_replica_async(env, scheduler, step_times, inbox, observer, planning_s)
    return run_replica(env, scheduler, step_times, inbox, observer)


def wait_until(env: simpy.Environment, time_s: float, priority: EventPriority = URGENT) -> Event:
    """An event at `time_s`; without another `priority` it comes before all steps that end at the same time."""
    event = Event(env)
    event._ok, event._value = True, None  # noqa: SLF001  as simpy's own Timeout is made
    env.schedule(event, priority=priority, delay=max(0.0, time_s - env.now))
    return event
