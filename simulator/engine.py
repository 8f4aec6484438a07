"""Build the world and run it: `simulate(scenario)` is the library's front door."""

from collections.abc import Generator, Iterator

import simpy
from simpy.events import Event

from simulator.latency import StepTimes
from simulator.replica import Inbox, StepObserver, run_replica, wait_until
from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["run_to_the_end"]


def run_to_the_end(
    scheduler: Scheduler, step_times: StepTimes, arrivals: Iterator[Request], observer: StepObserver
) -> float:
    """Serve all `arrivals` (in order of arrival) on one replica; gives back the simulated time, in seconds."""
    env = simpy.Environment()
    inbox = Inbox(env, scheduler)
    env.process(run_replica(env, scheduler, step_times, inbox, observer))
    env.process(_deliver(env, arrivals, inbox))
    env.run()
    return float(env.now)


def _deliver(env: simpy.Environment, arrivals: Iterator[Request], inbox: Inbox) -> Generator[Event, object, None]:
    for request in arrivals:
        if request.arrival_s > env.now:
            yield wait_until(env, request.arrival_s)
        inbox.deliver(request)
