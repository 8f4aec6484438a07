"""From what a person asked for to a run: one server, several, or prefill and decode replicas; checked, then run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from simulator.disaggregation import simulate_disaggregated
from simulator.disaggregation_options import disaggregated_of
from simulator.engine import simulate
from simulator.fleet import simulate_fleet
from simulator.fleet_options import FleetOptions, fleet_of
from simulator.operations_options import operations_of
from simulator.result import Result
from simulator.scenario import Scenario, ScenarioError
from workloads import SessionTrace, Trace

__all__ = ["Run", "prepare"]

Run = Callable[[Trace | SessionTrace | None, Callable[[float, int], None] | None], Result]
"""Replays a trace, or the scenario's own workload; `on_progress(now_s, num_ended)` is called now and then."""


def prepare(scenario: Scenario, options: FleetOptions, timeline: Path | None = None) -> Run:
    """What to run for a scenario on the servers that the options say.

    `timeline`, of a single server only: a file for the Perfetto viewer. Raises ScenarioError with one line for a person
    where options contradict each other or the scenario; the run raises ValueError where the server or the trace is
    wrong.
    """
    disaggregated = disaggregated_of(scenario, options)
    fleet = fleet_of(scenario, options) if disaggregated is None else None
    if fleet is None and disaggregated is None:
        operations_of(options.operations, 1, scenario.seed)
        return lambda trace, on_progress: simulate(scenario, trace, on_progress, timeline)
    _refuse_with_replicas(scenario, timeline)
    if disaggregated is not None:
        return _run(partial(simulate_disaggregated, *disaggregated))
    assert fleet is not None
    operations = operations_of(options.operations, len(fleet[0]), scenario.seed)
    return _run(partial(simulate_fleet, *fleet, operations=operations))


def _run(simulate_all: Callable[..., Result]) -> Run:
    return lambda trace, on_progress: simulate_all(trace=trace, on_progress=on_progress)


def _refuse_with_replicas(scenario: Scenario, timeline: Path | None) -> None:
    if timeline is not None:
        raise ScenarioError("--timeline: shows one server, so it does not go with several replicas")
    if scenario.back_with is not None:
        raise ScenarioError("--back-with: makes one server's pool, so it does not go with several replicas")
