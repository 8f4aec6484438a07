"""What must hold for every run of a disaggregated fleet, by name, beside what holds for each of its two fleets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvcache.errors import InvariantError
from simulator.disaggregated_result import stage_seconds
from simulator.fleet_checks import check_all_ended, check_fleet, check_littles_law, check_now
from simulator.result import Result

if TYPE_CHECKING:
    from simulator.disaggregation import Disaggregation

__all__ = ["check_disaggregation", "check_under_way"]

CLOCK_MAY_DIFFER_S = 1e-6


def check_under_way(world: Disaggregation) -> None:
    """Raise InvariantError if the fleets contradict each other right now, between two events. Looks at every block.

    requests-add-up: who arrived has ended, or is in one of the two fleets.
    lent-until-read: blocks of a finished prompt are held exactly as long as somebody may still read them, and who
    waits for contents that travel holds blocks for them.
    """
    check_now(world.prefill)
    check_now(world.decode)
    in_fleets = world.prefill.load.num + world.decode.load.num
    if not world.load.num == in_fleets == len(world.under_way):
        raise InvariantError(
            f"requests-add-up: {world.load.num} requests have arrived and not ended, {len(world.under_way)} are under"
            f" way and {in_fleets} in the two fleets"
        )
    lent = {each.prefill_request for each in world.under_way.values() if each.is_lent}
    kept = [entry for replica in world.prefill_replicas for entry in replica.scheduler.held.items()]
    held = {request for request, is_read in kept if not is_read}
    if lent != held:
        raise InvariantError(f"lent-until-read: {len(lent)} requests may still be read, {len(held)} hold blocks")
    travelling = sum(each.transfer is not None and each.transfer.arrived_s is None for each in world.under_way.values())
    waiting = sum(not there for replica in world.decode_replicas for there in replica.scheduler.held.values())
    if travelling != waiting:
        raise InvariantError(f"lent-until-read: {travelling} transfers are under way, {waiting} requests wait for one")


def check_disaggregation(world: Disaggregation, results: Sequence[Result]) -> None:
    """Raise InvariantError if a run that is over contradicts its tables; `results` are those of each replica.

    requests-add-up, tokens-once, littles-law: as for a fleet, for each of the two and for both together.
    bytes-add-up: what the requests' rows say travelled left the prefill replicas and reached the decode replicas.
    """
    check_under_way(world)
    num_prefill = len(world.prefill_replicas)
    check_fleet(world.prefill, results[:num_prefill])
    check_fleet(world.decode, results[num_prefill:])
    requests = world.rows.columns()
    check_all_ended(world.num_arrived, len(requests["request_id"]), world.load)
    travelled = int(requests["transferred_bytes"].sum())
    sent = sum(replica.sends.num_bytes for replica in world.prefill_replicas)
    received = sum(replica.receives.num_bytes for replica in world.decode_replicas)
    if not travelled == sent == received:
        raise InvariantError(
            f"bytes-add-up: {travelled} bytes travelled by the requests' rows, {sent} were sent and {received} received"
        )
    _check_times(world, requests)


def _check_times(world: Disaggregation, requests: dict[str, np.ndarray]) -> None:
    """Each request's stages follow one another, and all requests' times are what the fleet counted."""
    for name, seconds in stage_seconds(requests).items():
        if len(seconds) and seconds.min() < -CLOCK_MAY_DIFFER_S:
            raise InvariantError(f"stages-in-order: a request spent {seconds.min()} s in {name}")
    times_s = float(np.nansum(requests["finish_s"] - requests["arrival_s"])) + world.rejected_after_s
    check_littles_law(world.load, times_s)
