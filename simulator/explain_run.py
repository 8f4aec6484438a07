"""Explain one request of a run that was written into a folder: of a single server, or of a fleet.

A replay is the run only if what was recorded of the request comes out again; else that is all that is said.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from simulator.deployment import deploy
from simulator.explain import explain
from simulator.explain_fleet import ReplayedFleet
from simulator.fleet_options import FleetOptions, router_of
from simulator.run_folder import read_requests, read_summary
from simulator.scenario import Scenario, ScenarioError
from simulator.story import Story
from workloads import Trace

__all__ = ["Recorded", "explain_run", "find_recorded", "scenario_of_run"]

COMPARED = ("status", "finish_s", "first_token_s", "cached_tokens", "num_preemptions")
NAMED_IDS = 3
MOST_COMPARED_IDS = 20_000
OF_ANY_FLEET = frozenset({"num_replicas", "router", "router_staleness_s"})
"""What is said of a fleet to which nothing happens."""


class Recorded(NamedTuple):
    """What a run has recorded of the requests of one id."""

    rows: list[dict[str, Any]]
    """In order of arrival; of a fleet each with its `replica`."""
    num_ended_before: int
    """Requests that ended before the first of them did."""


def explain_run(
    folder: Path,
    request_id: str,
    trace: Trace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> Story:
    """Explain a request of a run that was written into a folder; `trace`: its workload, if it has moved.

    Raises ScenarioError where the folder holds no whole run, has no such request, or does not say what the replay says.
    """
    summary = read_summary(folder)
    scenario = _scenario(folder, summary["scenario"])
    recorded = find_recorded(folder, request_id)
    likely = recorded.rows[0]
    if "fleet" in summary["scenario"]:
        fleet, number = _fleet(folder, summary), likely["replica"]
        _check_deployment(folder, fleet.scenarios[number], summary["replicas"][number]["capacity"])
        story = fleet.explain(request_id, number, trace, on_progress)
    else:
        _check_deployment(folder, scenario, summary["capacity"])
        story = explain(scenario, request_id, trace, on_progress)
    replayed = {
        "status": story.status,
        "finish_s": story.end_s if story.status == "finished" else None,
        "first_token_s": story.first_token_s,
        "cached_tokens": story.cached_tokens,
        "num_preemptions": story.num_preemptions,
    }
    if replayed not in [{name: row[name] for name in COMPARED} for row in recorded.rows]:
        name = next(name for name in COMPARED if replayed[name] != likely[name])
        raise ScenarioError(
            f"{folder} does not come out again: request {request_id!r} has {name} {likely[name]} there and"
            f" {replayed[name]} in the replay, so the trace or kvplan has changed since"
        )
    return story


def scenario_of_run(folder: Path, trace: Path | None = None) -> Scenario:
    """The scenario that was run, of a fleet its first replica's; `trace` is where its trace lies now, if it has moved.

    Raises ScenarioError where the folder holds no whole run, or the trace is not there.
    """
    scenario = _scenario(folder, read_summary(folder)["scenario"])
    if scenario.is_closed_loop:
        raise ScenarioError(
            f"{folder} is a run in a closed loop: kvplan explains requests with arrivals of their own only"
        )
    if trace is not None:
        scenario = scenario.model_copy(update={"trace": trace})
    if scenario.trace is not None and not scenario.trace.exists():
        raise ScenarioError(
            f"--trace: the run's trace {scenario.trace} is not there; say where it is with --trace FILE"
        )
    return scenario


def _scenario(folder: Path, fields: Mapping[str, Any]) -> Scenario:
    _check_fleet(folder, fields.get("fleet", {}))
    try:
        return Scenario(**{name: value for name, value in fields.items() if name != "fleet"})
    except ScenarioError as error:
        raise ScenarioError(f"{folder / 'summary.json'} is of another version of kvplan: {error}") from None


def _check_fleet(folder: Path, stated: Mapping[str, Any]) -> None:
    if "prefill_replicas" in stated:
        raise ScenarioError(
            f"{folder} is a run of prefill and decode replicas: kvplan explains requests that one replica serves only"
        )
    if not OF_ANY_FLEET.issuperset(stated):
        raise ScenarioError(
            f"{folder} is of a fleet whose replicas come and go: kvplan explains requests of those that stay up"
        )


def _fleet(folder: Path, summary: Mapping[str, Any]) -> ReplayedFleet:
    scenarios = [_scenario(folder, replica["scenario"]) for replica in summary["replicas"]]
    stated = summary["scenario"]["fleet"]
    staleness_s = stated["router_staleness_s"]
    options = FleetOptions(len(scenarios), router=stated["router"], staleness_s=staleness_s or None)
    try:
        return ReplayedFleet(scenarios, *router_of(scenarios[0], options))
    except ScenarioError as error:
        raise ScenarioError(f"{folder} is the run of a fleet that cannot be replayed: {error}") from None


def _check_deployment(folder: Path, scenario: Scenario, then: Mapping[str, Any]) -> None:
    """Raise ScenarioError where the server of the run would be another one today."""
    now = deploy(scenario).describe()
    if name := next((name for name in now if now[name] != then.get(name)), None):
        raise ScenarioError(
            f"{folder} does not come out again: {name} was {then.get(name)} and is {now[name]} today,"
            " so kvplan has changed since"
        )


def find_recorded(folder: Path, request_id: str) -> Recorded:
    """What the run has recorded of a request. Raises ScenarioError with the nearest ids where there is none."""
    of_fleet = ("replica",) if "fleet" in read_summary(folder)["scenario"] else ()
    columns = read_requests(folder, ("request_id", "arrival_s", *COMPARED, *of_fleet))
    ids = columns["request_id"]
    numbers = [number for number, name in enumerate(ids) if name == request_id]
    if not numbers:
        raise ScenarioError(f"{folder} has no request {request_id!r}{_nearest(request_id, ids)}")
    numbers.sort(key=lambda number: columns["arrival_s"][number])
    rows = [{name: values[number] for name, values in columns.items()} for number in numbers]
    return Recorded(rows, numbers[0])


def _nearest(request_id: str, ids: list[str]) -> str:
    alike = [name for name in ids if abs(len(name) - len(request_id)) <= 2][:MOST_COMPARED_IDS]
    if nearest := get_close_matches(request_id, alike, n=NAMED_IDS):
        return f"; the nearest: {', '.join(map(repr, nearest))}"
    shown = ", ".join(map(repr, ids[:NAMED_IDS]))
    return f"; it has {len(ids):,}, such as {shown}" if ids else "; it has none"
