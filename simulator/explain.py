"""Explain one request of a run: replay the run, which comes out the same each time, and watch that request.

So a run need not record anything for it. What was recorded of the request tells whether the replay was the run.
"""

from collections.abc import Callable

from kvcache.pool_kinds import ONE_SIZE
from kvcache.watching import WatchedManager
from simulator.deployment import Deployment, deploy
from simulator.engine import arrivals_at, request_of, run_to_the_end, workload_of
from simulator.request import Request
from simulator.scenario import Scenario, ScenarioError
from simulator.scheduler import Scheduler
from simulator.story import Story
from simulator.watcher import Ended, Watcher
from workloads import Trace

__all__ = ["check_is_watchable", "explain", "first_of_id"]


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
    check_is_watchable(deployment)
    trace = trace or workload_of(scenario)
    manager = WatchedManager(deployment.layout, deployment.cache_settings)
    scheduler = deployment.new_scheduler(manager)
    watcher = Watcher(scheduler, manager, first_of_id(request_id, trace, scheduler), on_progress)
    _replay(deployment, scheduler, trace, watcher)
    if watcher.story is None:
        raise ScenarioError(f"request {request_id!r} does not end in the replay of this run")
    return watcher.story


def check_is_watchable(deployment: Deployment) -> None:
    """Raise ScenarioError where a server has what no story can tell of yet."""
    scenario = deployment.scenario
    if deployment.layout.pool_kind != ONE_SIZE:
        raise ScenarioError(
            f"explain: knows vLLM's pool only, not --grouping {scenario.grouping} with --semantics {scenario.semantics}"
        )
    if scenario.kv_offloading_size:
        raise ScenarioError("explain: does not know host tiers yet (--kv-offloading-size)")


def _replay(deployment: Deployment, scheduler: Scheduler, trace: Trace, watcher: Watcher) -> None:
    arrivals = watcher.watch(arrivals_at(trace, deployment, scheduler, watcher.rejected))
    try:
        run_to_the_end(scheduler, deployment.step_times, arrivals, watcher)
    except Ended:
        return


def first_of_id(request_id: str, trace: Trace, scheduler: Scheduler) -> Request:
    """The first request of this id, as its scheduler will know it. Raises ScenarioError where there is none."""
    for serial, row in enumerate(trace):
        if row.request_id == request_id:
            return request_of(row, trace.prefix_block_tokens, serial, scheduler)
    raise ScenarioError(f"request {request_id!r} is not in the trace {trace.name!r}: it has changed since the run")
