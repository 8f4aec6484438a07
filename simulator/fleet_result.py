"""What a fleet's run leaves behind: every replica's own result, and one table and summary of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.load import Load
from simulator.metrics import Floats, rounded, summarize
from simulator.result import Result
from simulator.table import Columns

__all__ = ["FleetResult", "combine"]

SUMMED_CAPACITY = ("num_blocks", "pool_bytes", "kv_cache_tokens", "max_concurrency")


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetResult(Result):
    """One simulated run of several replicas.

    `requests` and `steps` have a column more: `replica`, its number from 0; steps of different replicas overlap.
    `capacity` has sums over all replicas only. `summary["replicas"]` has each replica's scenario, capacity and
    measures.
    """

    replicas: tuple[Result, ...]


def combine(
    results: Sequence[Result],
    loads: Sequence[Load],
    fleet_load: Load,
    routing: dict[str, Any],
    requests: Columns | None = None,
) -> FleetResult:
    """All replicas' results (at least one) as one; `loads` are the requests in flight at each, and in the fleet.

    `routing` is what to say of the router. `requests`: the fleet's own table, where one request was at several.
    """
    if requests is None:
        requests = _merged([result.tables["requests"] for result in results])
    tables = {
        "requests": _ended_in_order(requests),
        "steps": _in_order(_merged([result.tables["steps"] for result in results]), "start_s"),
        "token_gaps": _stacked([result.tables["token_gaps"] for result in results]),
    }
    capacity = {name: sum(result.capacity[name] for result in results) for name in SUMMED_CAPACITY}
    null_blocks = len(results) - 1
    summary = summarize(**tables, capacity={"num_blocks": capacity["num_blocks"] - null_blocks})
    usable_blocks = capacity["num_blocks"] - len(results)
    summary["kv_cache_usage"]["max"] = rounded(_most_at_once(tables["steps"], "held_blocks") / usable_blocks)
    for column in ("running", "waiting"):
        summary[column]["max"] = int(_most_at_once(tables["steps"], column))
    # Replicas are sampled at different times: what they waste together is known on average only.
    wasted = [result.summary["wasted_bytes"]["mean"] for result in results]
    summary["wasted_bytes"]["mean"] = sum(each for each in wasted if each is not None)
    summary["wasted_bytes"]["max"] = None
    summary["in_flight"] = _in_flight(fleet_load, summary["makespan_s"])
    summary["replicas"] = [
        {**result.to_json(), "in_flight": _in_flight(load, summary["makespan_s"])}
        for result, load in zip(results, loads, strict=True)
    ]
    scenario = {**results[0].scenario, "fleet": {"num_replicas": len(results), **routing}}
    return FleetResult(scenario=scenario, capacity=capacity, tables=tables, summary=summary, replicas=tuple(results))


def _in_flight(load: Load, span_s: float) -> dict[str, float | int | None]:
    """Requests there, on average over the fleet's makespan and at most."""
    return {"mean": rounded(load.request_s / span_s) if span_s > 0 else None, "max": load.most}


def _merged(tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    """One table of all, with a column `replica`."""
    sizes = [len(next(iter(dict(table.items()).values()))) for table in tables]
    return {**_stacked(tables), "replica": np.repeat(np.arange(len(tables)), sizes)}


def _stacked(tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([table[name] for table in tables]) for name, _ in tables[0].items()}


def _ended_in_order(requests: Columns) -> dict[str, np.ndarray]:
    """By the time of the end; who was rejected, by that of the arrival."""
    end_s = np.where(np.isnan(requests["finish_s"]), requests["arrival_s"], requests["finish_s"])
    order = np.argsort(end_s, kind="stable")
    return {name: values[order] for name, values in requests.items()}


def _in_order(table: Mapping[str, np.ndarray], column: str) -> dict[str, np.ndarray]:
    order = np.argsort(table[column], kind="stable")
    return {name: values[order] for name, values in table.items()}


def _most_at_once(steps: Mapping[str, np.ndarray], column: str) -> float:
    """The largest sum over replicas at any time: a row's value holds from its start to its end."""
    values: Floats = steps[column].astype(np.float64)
    times_s = np.concatenate([steps["start_s"], steps["end_s"]])
    changes = np.concatenate([values, -values])
    order = np.lexsort((changes, times_s))  # at equal times what ends first
    return float(max(0.0, changes[order].cumsum().max(initial=0.0)))
