"""From a scenario to its traffic: a trace with times of arrival, or a closed loop of sessions or requests."""

from dataclasses import replace
from functools import partial
from math import inf

from simulator.closed_loop import ClosedLoop
from simulator.engine import workload_of
from simulator.scenario import Scenario, ScenarioError
from workloads import (
    SessionTrace,
    Trace,
    conversation_demo_sessions,
    first_sessions,
    one_call_each,
    read_sessions,
    session_starts_s,
)

__all__ = ["traffic_of"]

DEFAULT_NUM_SESSIONS = 100
"""Of conversations that are made up, where nobody says how many."""
NO_SESSIONS = "goes with sessions only, which --concurrent-sessions or --session-rate ask for"
NO_ARRIVALS = "changes times of arrival, and in a closed loop requests have none of their own"
NOT_IN_SESSIONS = {
    "concurrency": "keeps single requests in flight, --concurrent-sessions keeps sessions open: say one of them",
    "request_rate": "makes single requests up, so it does not go with sessions: say --session-rate",
    "input_len": "goes with single requests only, not with sessions",
    "output_len": "goes with single requests only, not with sessions",
    "num_requests": "would cut a session in the middle: say --num-sessions",
    "rate_scale": NO_ARRIVALS,
    "spread_ticks": NO_ARRIVALS,
}
NOT_IN_FLIGHT = {
    "request_rate": "says when requests arrive, --concurrency that they come when others have ended: say one of them",
    "rate_scale": NO_ARRIVALS,
    "spread_ticks": NO_ARRIVALS,
    "num_sessions": NO_SESSIONS,
    "max_think_time_s": NO_SESSIONS,
}
NOT_IN_THE_OPEN = {"num_sessions": NO_SESSIONS, "max_think_time_s": NO_SESSIONS}


def traffic_of(scenario: Scenario, trace: Trace | SessionTrace | None = None) -> Trace | ClosedLoop:
    """What a scenario replays, and how it comes; `trace` replaces the workload that it names.

    Raises ScenarioError with one line for a person, and TraceError where the trace cannot be read.
    """
    if scenario.has_sessions:
        _refuse(scenario, NOT_IN_SESSIONS)
        return _sessions(scenario, trace)
    _refuse(scenario, NOT_IN_THE_OPEN if scenario.concurrency is None else NOT_IN_FLIGHT)
    if isinstance(trace, SessionTrace):
        raise ScenarioError(
            f"--trace: {trace.name} holds sessions without times of arrival: say how they come,"
            " with --concurrent-sessions or --session-rate"
        )
    if scenario.concurrency is None:
        return trace or workload_of(scenario)
    return ClosedLoop(
        one_call_each(trace or _requests(scenario)), most_at_once=scenario.concurrency, measures_sessions=False
    )


def _refuse(scenario: Scenario, reasons: dict[str, str]) -> None:
    """Raise ScenarioError for the first of these settings that somebody stated."""
    for name, reason in reasons.items():
        if getattr(scenario, name) != Scenario.model_fields[name].default:
            raise ScenarioError(f"--{name.replace('_', '-')}: {reason}")


def _sessions(scenario: Scenario, trace: Trace | SessionTrace | None) -> ClosedLoop:
    if isinstance(trace, Trace):
        raise ScenarioError(f"--trace: {trace.name} holds single requests, not sessions: say --concurrency")
    if trace is None and scenario.trace is None:
        sessions = conversation_demo_sessions(scenario.num_sessions or DEFAULT_NUM_SESSIONS, scenario.seed)
    else:
        sessions = trace or read_sessions(scenario.trace or "")
        if scenario.num_sessions is not None:
            sessions = first_sessions(sessions, scenario.num_sessions)
    loop = ClosedLoop(
        sessions,
        most_at_once=scenario.concurrent_sessions,
        max_think_s=inf if scenario.max_think_time_s is None else scenario.max_think_time_s,
    )
    if scenario.session_rate is None:
        return loop
    return replace(loop, starts_s=partial(session_starts_s, scenario.session_rate, scenario.seed))


def _requests(scenario: Scenario) -> Trace:
    """The requests of a closed loop; when they would have arrived does not matter."""
    if scenario.input_len is None and scenario.output_len is None:
        return workload_of(scenario)
    if scenario.input_len is None or scenario.output_len is None:
        raise ScenarioError("--concurrency: makes requests up from --input-len and --output-len together")
    if scenario.trace is not None:
        raise ScenarioError("--input-len: makes requests up, so it does not go with --trace")
    return workload_of(scenario.model_copy(update={"request_rate": 1.0}))
