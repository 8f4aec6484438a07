"""What must hold for every run of a fleet, by name: counted as it happened, and again from the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvcache.errors import InvariantError
from simulator.load import Load
from simulator.metrics import inter_token_latencies
from simulator.result import Result
from simulator.running import holding

if TYPE_CHECKING:
    from simulator.fleet import Fleet
    from simulator.fleet_replica import Replica

__all__ = ["check_all_ended", "check_fleet", "check_littles_law", "check_now"]

LITTLES_LAW_MAY_DIFFER = 1e-9
"""Of sums of the same times in another order."""


def check_now(fleet: Fleet) -> None:
    """Raise InvariantError if the fleet contradicts itself right now, between two events. Looks at every block.

    requests-add-up: who arrived waits in the fleet's queue, is at one replica that runs, or has ended.
    conservation and its kin: see `kvcache.manager.KVCacheManager.check_integrity`. A replica that fails is looked at
    too, before its server is gone.
    """
    at_replicas = 0
    for replica in fleet.replicas:
        scheduler = replica.scheduler
        there = 0
        if replica.has_server:
            holders = holding(scheduler)
            scheduler.manager.check_integrity([request.blocks for request in holders])
            there = sum(request.finish_s is None for request in holders) + len(scheduler.waiting)
        if there != replica.num_in_flight:
            raise InvariantError(
                f"requests-add-up: {replica.num_in_flight} requests were sent to replica {replica.name} and have not"
                f" ended, but {there} are there"
            )
        at_replicas += there
    if fleet.load.num != at_replicas + len(fleet.queue):
        raise InvariantError(
            f"requests-add-up: {fleet.load.num} requests have arrived and not ended, but {at_replicas} are at replicas"
            f" and {len(fleet.queue)} wait for the router"
        )


def check_fleet(fleet: Fleet, results: Sequence[Result]) -> None:
    """Raise InvariantError if a run that is over contradicts its tables, those of each replica.

    requests-add-up: arrived = finished + rejected + lost + in flight.
    tokens-once: each token of a finished request came from one step of one replica, the one where it finished; what
    a replica generated beside those tokens went down with it when it failed.
    littles-law: requests that are there on average = arrivals a second x their average time.
    """
    check_now(fleet)
    ended = sum(len(result.tables["requests"]["request_id"]) for result in results) + len(fleet.lost_in_queue)
    check_all_ended(fleet.num_arrived, ended, fleet.load)
    for replica, result in zip(fleet.replicas, results, strict=True):
        _check_tokens(replica, result)
    _check_littles_law(fleet, results)


def _check_tokens(replica: Replica, result: Result) -> None:
    """Each token but a request's first comes a gap after the one before it; steps and late tokens count the gaps."""
    requests = result.tables["requests"]
    is_finished = requests["status"] == "finished"
    if np.any((requests["status"] == "rejected") & ~np.isnan(requests["first_token_s"])):
        return  # what was generated for who was rejected in the middle is in no table
    wanted = int((requests["output_tokens"][is_finished] - 1).sum())
    wanted += replica.lost_tokens - replica.num_lost_answers
    _, counts = inter_token_latencies(result.tables["steps"], result.tables["token_gaps"])
    if wanted != int(counts.sum()):
        raise InvariantError(
            f"tokens-once: replica {replica.name} generated {int(counts.sum())} tokens after first ones, its requests"
            f" have {wanted}"
        )


def check_all_ended(num_arrived: int, num_ended: int, load: Load) -> None:
    """Raise InvariantError unless who arrived has ended or is there."""
    if num_arrived != num_ended + load.num:
        raise InvariantError(
            f"requests-add-up: {num_arrived} requests arrived, {num_ended} ended and {load.num} are in flight"
        )


def _check_littles_law(fleet: Fleet, results: Sequence[Result]) -> None:
    times_s = sum(
        float(np.nansum(result.tables["requests"]["finish_s"] - result.tables["requests"]["arrival_s"]))
        for result in results
    )
    times_s += sum(replica.rejected_after_s for replica in fleet.replicas) + fleet.lost_after_s
    check_littles_law(fleet.load, times_s)


def check_littles_law(load: Load, times_s: float) -> None:
    """Raise InvariantError unless all requests together were there as long as their own times add up to."""
    if not load.num and abs(load.request_s - times_s) > LITTLES_LAW_MAY_DIFFER * times_s:
        raise InvariantError(
            f"littles-law: requests were there for {load.request_s:.6g} s in all by the fleet's count,"
            f" {times_s:.6g} s by the tables"
        )
