"""Build the world and run it: `simulate(scenario)` is the library's front door."""

from collections.abc import Callable, Generator, Iterator
from itertools import count
from pathlib import Path

import simpy
from simpy.events import Event

from kvcache.policies import GroupingPolicy
from simulator.arrival import Arrival
from simulator.backing import back
from simulator.deployment import Deployment, deploy
from simulator.host_tier import with_host_memory
from simulator.latency import StepTimes
from simulator.metrics import summarize
from simulator.recorder import BATCHES_PER_SAMPLE, Recorder
from simulator.replica import Inbox, StepObserver, serve, wait_until
from simulator.request import Request
from simulator.result import Result
from simulator.scenario import Scenario, ScenarioError
from simulator.scheduler import Scheduler
from simulator.timeline import Timeline, writing
from workloads import (
    Arrivals,
    Lengths,
    SessionTrace,
    Trace,
    TraceRequest,
    Traffic,
    conversation_demo,
    read_trace,
    scale_rate,
    slice_rows,
    spread_ticks,
    synthesize,
)

__all__ = ["arrivals_at", "request_of", "run_to_the_end", "simulate", "simulate_on", "too_long", "workload_of"]

DEFAULT_NUM_REQUESTS = 1000
"""Of traffic that is made up, where nobody says how many."""


def simulate(
    scenario: Scenario,
    trace: Trace | SessionTrace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
    timeline: Path | None = None,
    policy: GroupingPolicy | None = None,
    batches_per_sample: int = BATCHES_PER_SAMPLE,
) -> Result:
    """Replay a workload on the server that a scenario describes.

    `trace` replaces the scenario's own workload; `on_progress(now_s, num_ended)` is called now and then.
    `timeline`, FILE.json or FILE.json.gz, is written for the Perfetto viewer: every request and every step.
    `policy` groups the layers, instead of the one that the scenario names. The memory ledger is written down every
    `batches_per_sample` batches: the more often, the closer the wasted bytes, and the longer it takes.
    A closed loop (`Scenario.is_closed_loop`) takes neither `timeline` nor `policy`, and samples the ledger as usual.
    Raises ValueError with one line for a person where the scenario or the trace is wrong.
    """
    if scenario.is_closed_loop or isinstance(trace, SessionTrace):
        from simulator.fleet import simulate_closed_loop  # a fleet of one, which imports this module

        stated = {"--timeline": timeline, "--back-with": scenario.back_with, "policy": policy}
        if name := next((name for name, value in stated.items() if value is not None), None):
            raise ScenarioError(f"{name}: goes with requests that arrive at times of their own, not with a closed loop")
        return simulate_closed_loop(scenario, trace, on_progress)
    deployment = deploy(scenario, policy)
    return simulate_on(deployment, trace or workload_of(scenario), on_progress, timeline, batches_per_sample)


def simulate_on(
    deployment: Deployment,
    trace: Trace,
    on_progress: Callable[[float, int], None] | None = None,
    timeline: Path | None = None,
    batches_per_sample: int = BATCHES_PER_SAMPLE,
) -> Result:
    """Replay a trace on a server, which need not be one that a scenario can name; see `simulate`."""
    scheduler, host = with_host_memory(deployment)
    connect = (lambda env, inbox: None) if host is None else host.connect
    recorder = Recorder(scheduler, on_progress, batches_per_sample)
    backing = back(deployment, scheduler, trace)
    if timeline is None:
        arrivals = arrivals_at(trace, deployment, scheduler, recorder.rejected, backing.expect)
        run_to_the_end(scheduler, deployment.step_times, arrivals, backing.watch(recorder), connect=connect)
    else:
        with writing(timeline) as events:
            observer = Timeline(events, scheduler, recorder)
            arrivals = observer.watch(arrivals_at(trace, deployment, scheduler, observer.rejected, backing.expect))
            run_to_the_end(scheduler, deployment.step_times, arrivals, backing.watch(observer), connect=connect)
    tables = recorder.tables()
    num_warmups = deployment.scenario.num_left_out
    capacity, tally = deployment.describe(), None if host is None else host.tally()
    return Result(
        scenario=deployment.resolved_scenario(),
        capacity=capacity,
        tables=tables,
        summary=summarize(**tables, capacity=capacity, host=tally, may_lose=False, num_warmups=num_warmups),
        measured_memory=backing.measured(),
        host_tally=tally,
    )


def workload_of(scenario: Scenario, read: Callable[[Path], Trace] = read_trace) -> Trace:
    """The trace that a scenario names, or the embedded one, reshaped as asked; `read` gives the one in a file."""
    if scenario.request_rate is not None:
        return _steady_requests(scenario, scenario.request_rate)
    for flag, length in (("--input-len", scenario.input_len), ("--output-len", scenario.output_len)):
        if length is not None:
            raise ScenarioError(f"{flag}: goes with --request-rate only")
    trace = conversation_demo(scenario.seed) if scenario.trace is None else read(scenario.trace)
    if scenario.num_requests is not None:
        trace = slice_rows(trace, 0, scenario.num_requests)
    if scenario.spread_ticks:
        trace = spread_ticks(trace, seed=scenario.seed)
    return trace if scenario.rate_scale == 1.0 else scale_rate(trace, scenario.rate_scale)


def _steady_requests(scenario: Scenario, rate_per_s: float) -> Trace:
    if scenario.trace is not None:
        raise ScenarioError("--request-rate: makes requests up, so it does not go with --trace")
    if scenario.spread_ticks:
        raise ScenarioError("--spread-ticks: there are no ticks in the arrivals of --request-rate")
    if scenario.input_len is None or scenario.output_len is None:
        raise ScenarioError("--request-rate: needs --input-len and --output-len beside it")
    try:
        traffic = Traffic(
            arrivals=Arrivals.poisson(rate_per_s * scenario.rate_scale),
            prompts=Lengths.fixed(scenario.input_len),
            outputs=Lengths.fixed(scenario.output_len),
        )
    except ValueError as error:
        raise ScenarioError(f"--request-rate, --input-len, --output-len: {error}") from None
    return synthesize(traffic, scenario.num_requests or DEFAULT_NUM_REQUESTS, seed=scenario.seed)


def run_to_the_end(
    scheduler: Scheduler,
    step_times: StepTimes,
    arrivals: Iterator[Request],
    observer: StepObserver,
    planning_s: float = 0.0,
    connect: Callable[[simpy.Environment, Inbox], None] = lambda env, inbox: None,
) -> float:
    """Serve all `arrivals` (in order of arrival) on one replica; gives back the simulated time, in seconds.

    `planning_s` is what asynchronous scheduling takes to plan a step while nothing runs. `connect` gives the world to
    whoever else is in it: the scheduler's source, say.
    """
    env = simpy.Environment()
    inbox = Inbox(env, scheduler)
    connect(env, inbox)
    env.process(serve(env, scheduler, step_times, inbox, observer, planning_s))
    env.process(_deliver(env, arrivals, inbox))
    env.run()
    return float(env.now)


def _deliver(env: simpy.Environment, arrivals: Iterator[Request], inbox: Inbox) -> Generator[Event, object, None]:
    for request in arrivals:
        if request.arrival_s > env.now:
            yield wait_until(env, request.arrival_s)
        inbox.deliver(request)


def arrivals_at(
    trace: Trace,
    deployment: Deployment,
    scheduler: Scheduler,
    on_rejected: Callable[[Request, str], None],
    on_made: Callable[[Request, TraceRequest, int], None] = lambda *made: None,
) -> Iterator[Request]:
    """The trace's requests, without those that the server turns away at the door.

    `on_made` gets each of the others with its row and its number before it arrives.
    """
    max_model_len = deployment.scheduler_settings.max_model_len
    serials = count()
    for row in trace:
        serial = next(serials)
        request = request_of(row, trace.prefix_block_tokens, serial, scheduler)
        if request.max_tokens > max_model_len:
            on_rejected(request, too_long(max_model_len))
        else:
            on_made(request, row, serial)
            yield request


def too_long(max_model_len: int) -> str:
    """Why a server turns a request away at the door."""
    return f"prompt and output are longer than max_model_len {max_model_len}"


def request_of(row: TraceRequest, prefix_block_tokens: int | None, serial: int, scheduler: Scheduler) -> Request:
    """A row of a trace as its scheduler knows it; `serial` is the row's number, from 0."""
    return Arrival(row, prefix_block_tokens, serial).request_for(scheduler.manager)
