"""Explain one request of a run: replay the run, which comes out the same each time, and watch that request.

So a run need not record anything for it. What was recorded of the request tells whether the replay was the run.
"""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from kvcache.pool_kinds import ONE_SIZE
from kvcache.watching import WatchedManager
from simulator.deployment import Deployment, deploy
from simulator.engine import arrivals_at, request_of, run_to_the_end, workload_of
from simulator.request import Request
from simulator.run_folder import read_requests, read_summary
from simulator.scenario import Scenario, ScenarioError
from simulator.scheduler import Scheduler
from simulator.story import Story
from simulator.watcher import Ended, Watcher
from workloads import Trace

__all__ = ["Recorded", "explain", "explain_run", "find_recorded", "scenario_of_run"]

COMPARED = ("status", "finish_s", "first_token_s", "cached_tokens", "num_preemptions")
NAMED_IDS = 3
MOST_COMPARED_IDS = 20_000


class Recorded(NamedTuple):
    """What a run has recorded of the requests of one id."""

    rows: list[dict[str, Any]]
    """In order of arrival."""
    num_ended_before: int
    """Requests that ended before the first of them did."""


def explain(
    scenario: Scenario,
    request_id: str,
    trace: Trace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> Story:
    """Replay a scenario until the request has ended, and tell its life.

    `trace` replaces the scenario's own workload; of several requests of one id it is the first.
    `on_progress(now_s, num_ended)` is called now and then. Raises ScenarioError for an id that no request has.
    """
    deployment = deploy(scenario)
    if deployment.layout.pool_kind != ONE_SIZE:
        raise ScenarioError(
            f"explain: knows vLLM's pool only, not --grouping {scenario.grouping} with --semantics {scenario.semantics}"
        )
    if scenario.kv_offloading_size:
        raise ScenarioError("explain: does not know host tiers yet (--kv-offloading-size)")
    trace = trace or workload_of(scenario)
    manager = WatchedManager(deployment.layout, deployment.cache_settings)
    scheduler = deployment.new_scheduler(manager)
    watcher = Watcher(scheduler, manager, _request_of_id(request_id, trace, scheduler), on_progress)
    _replay(deployment, scheduler, trace, watcher)
    if watcher.story is None:
        raise ScenarioError(f"request {request_id!r} does not end in the replay of this run")
    return watcher.story


def _replay(deployment: Deployment, scheduler: Scheduler, trace: Trace, watcher: Watcher) -> None:
    arrivals = watcher.watch(arrivals_at(trace, deployment, scheduler, watcher.rejected))
    try:
        run_to_the_end(scheduler, deployment.step_times, arrivals, watcher)
    except Ended:
        return


def _request_of_id(request_id: str, trace: Trace, scheduler: Scheduler) -> Request:
    for serial, row in enumerate(trace):
        if row.request_id == request_id:
            return request_of(row, trace.prefix_block_tokens, serial, scheduler)
    raise ScenarioError(f"request {request_id!r} is not in the trace {trace.name!r}: it has changed since the run")


# Run folders.


def explain_run(
    folder: Path,
    request_id: str,
    trace: Trace | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> Story:
    """Explain a request of a run that was written into a folder; `trace`: its workload, if it has moved.

    Raises ScenarioError where the folder holds no whole run, has no such request, or does not say what the replay says.
    """
    scenario = _scenario(folder)
    recorded = find_recorded(folder, request_id)
    _check_deployment(folder, scenario)
    story = explain(scenario, request_id, trace, on_progress)
    replayed = {
        "status": story.status,
        "finish_s": story.end_s if story.status == "finished" else None,
        "first_token_s": story.first_token_s,
        "cached_tokens": story.cached_tokens,
        "num_preemptions": story.num_preemptions,
    }
    likely = recorded.rows[0]
    if replayed not in [{name: row[name] for name in COMPARED} for row in recorded.rows]:
        name = next(name for name in COMPARED if replayed[name] != likely[name])
        raise ScenarioError(
            f"{folder} does not come out again: request {request_id!r} has {name} {likely[name]} there and"
            f" {replayed[name]} in the replay, so the trace or kvplan has changed since"
        )
    return story


def scenario_of_run(folder: Path, trace: Path | None = None) -> Scenario:
    """The scenario that was run; `trace` is where its trace lies now, if not where it lay then.

    Raises ScenarioError where the folder holds no whole run, or the trace is not there.
    """
    scenario = _scenario(folder)
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


def _scenario(folder: Path) -> Scenario:
    fields = read_summary(folder)["scenario"]
    if "fleet" in fields:
        raise ScenarioError(f"{folder} is the run of a fleet: kvplan explains requests of a single server only")
    try:
        return Scenario(**fields)
    except ScenarioError as error:
        raise ScenarioError(f"{folder / 'summary.json'} is of another version of kvplan: {error}") from None


def _check_deployment(folder: Path, scenario: Scenario) -> None:
    """Raise ScenarioError where the server of the run would be another one today."""
    then, now = read_summary(folder)["capacity"], deploy(scenario).describe()
    if name := next((name for name in now if now[name] != then.get(name)), None):
        raise ScenarioError(
            f"{folder} does not come out again: {name} was {then.get(name)} and is {now[name]} today,"
            " so kvplan has changed since"
        )


def find_recorded(folder: Path, request_id: str) -> Recorded:
    """What the run has recorded of a request. Raises ScenarioError with the nearest ids where there is none."""
    columns = read_requests(folder, ("request_id", "arrival_s", *COMPARED))
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
