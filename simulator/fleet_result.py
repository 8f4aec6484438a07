"""What a fleet's run leaves behind: every replica's own result, and one table and summary of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from simulator.fleet_history import NOWHERE, History, lost_table
from simulator.host_tally import add_up
from simulator.load import Load
from simulator.metrics import Floats, rounded, summarize
from simulator.operations import QUIET, Operations
from simulator.result import Result
from simulator.table import Columns

if TYPE_CHECKING:
    from simulator.fleet import Fleet
    from simulator.fleet_replica import Replica

__all__ = ["NOBODY_LEFT", "FleetResult", "all_requests", "combine"]

NOBODY_LEFT = "no replica came back to serve it"
"""Why a request is lost that waits for a replica when nothing happens any more."""

SUMMED_CAPACITY = ("num_blocks", "pool_bytes", "kv_cache_tokens", "max_concurrency")


@dataclass(frozen=True, eq=False, kw_only=True)
class FleetResult(Result):
    """One simulated run of several replicas.

    `requests` and `steps` have a column more: `replica`, its number from 0; steps of different replicas overlap.
    `requests` has `num_retries` besides: how often a failure sent it elsewhere. A request can be "lost", too; the
    replica of who was lost while no replica had it is -1. If anything is done to replicas, there is a table `states`
    (see `fleet_history.History.table`).
    `capacity` has sums over all replicas only. `summary["replicas"]` has each replica's scenario, capacity and
    measures.
    """

    replicas: tuple[Result, ...]


class Served(Protocol):
    """A fleet that has served everybody."""

    @property
    def operations(self) -> Operations:
        """What happened to its replicas."""

    @property
    def load(self) -> Load:
        """Requests that had arrived and not ended."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """All that ever were."""


def combine(
    fleet: Served, results: Sequence[Result], stated: dict[str, Any], requests: Mapping[str, np.ndarray]
) -> FleetResult:
    """All replicas' results (at least one), those of a fleet that has served everybody, as one.

    `stated` is what to say of the fleet; `requests` has a row for each, wherever it was (see `all_requests`).
    """
    tables: dict[str, Any] = {
        "requests": _ended_in_order(requests),
        "steps": _in_order(_merged([result.tables["steps"] for result in results]), "start_s"),
        "token_gaps": _stacked([result.tables["token_gaps"] for result in results]),
    }
    capacity = {name: sum(result.capacity[name] for result in results) for name in SUMMED_CAPACITY}
    null_blocks = len(results) - 1
    is_operated = fleet.operations != QUIET
    tallies = [result.host_tally for result in results if result.host_tally is not None]
    host_tally = add_up(tallies) if tallies else None
    pool = {"num_blocks": capacity["num_blocks"] - null_blocks}
    num_warmups = results[0].scenario["num_warmups"]
    summary = summarize(**tables, capacity=pool, host=host_tally, may_lose=is_operated, num_warmups=num_warmups)
    usable_blocks = capacity["num_blocks"] - len(results)
    summary["kv_cache_usage"]["max"] = rounded(_most_at_once(tables["steps"], "held_blocks") / usable_blocks)
    for column in ("running", "waiting"):
        summary[column]["max"] = int(_most_at_once(tables["steps"], column))
    # Replicas are sampled at different times: what they waste together is known on average only.
    wasted = [result.summary["wasted_bytes"]["mean"] for result in results]
    summary["wasted_bytes"]["mean"] = sum(each for each in wasted if each is not None)
    summary["wasted_bytes"]["max"] = None
    span_s = summary["makespan_s"]
    summary["in_flight"] = _in_flight(fleet.load, span_s)
    summary["replicas"] = [
        {**result.to_json(), "in_flight": _in_flight(replica.load, span_s)}
        for result, replica in zip(results, fleet.replicas, strict=True)
    ]
    if is_operated:
        stated = {**stated, **fleet.operations.to_json()}
        _add_history(summary, tables, fleet)
    scenario = {**results[0].scenario, "fleet": stated}
    return FleetResult(
        scenario=scenario,
        capacity=capacity,
        tables=tables,
        summary=summary,
        host_tally=host_tally,
        replicas=tuple(results),
    )


def _add_history(summary: dict[str, Any], tables: dict[str, Any], fleet: Served) -> None:
    """What became of replicas, and of requests there: a table, and what it comes to for each and for all of them."""
    begin_s = float(tables["requests"]["arrival_s"].min(initial=fleet.load.changed_s))
    last_step_s = float(tables["steps"]["end_s"].max(initial=begin_s))
    history = History(fleet.replicas, begin_s, max(last_step_s, fleet.load.changed_s))
    tables["states"] = history.table()
    summary["operations"] = history.measures(tables["states"])
    for replica, measures in zip(fleet.replicas, summary["replicas"], strict=True):
        measures.update(history.measures_of(replica))


def all_requests(fleet: Fleet, results: Sequence[Result]) -> dict[str, np.ndarray]:
    """Of all replicas, and of none."""
    requests = _merged([result.tables["requests"] for result in results])
    requests["num_retries"] = np.array([num for replica in fleet.replicas for num in replica.num_retries], np.int64)
    if not fleet.lost_in_queue:
        return requests
    lost = lost_table(fleet.lost_in_queue, NOBODY_LEFT)
    lost["replica"] = np.full(len(fleet.lost_in_queue), NOWHERE)
    lost["num_retries"] = np.array([arrival.num_retries for arrival in fleet.lost_in_queue], np.int64)
    return _stacked([requests, lost])


def _in_flight(load: Load, span_s: float) -> dict[str, float | int | None]:
    """Requests there, on average over the fleet's makespan and at most."""
    return {"mean": rounded(load.request_s / span_s) if span_s > 0 else None, "max": load.most}


def _merged(tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    """One table of all, with a column `replica`."""
    sizes = [len(next(iter(dict(table.items()).values()))) for table in tables]
    return {**_stacked(tables), "replica": np.repeat(np.arange(len(tables)), sizes)}


def _stacked(tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    columns = [dict(table.items()) for table in tables]
    names = dict.fromkeys(name for table in columns for name in table)
    return {name: np.concatenate([_column(table, name) for table in columns]) for name in names}


def _column(table: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A column; nothing was loaded where there is no host tier to load from."""
    return table[name] if name in table else np.zeros(len(table["request_id"]), dtype=np.int64)


def _ended_in_order(requests: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
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
