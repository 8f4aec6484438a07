"""What a disaggregated run leaves behind: one row for each request, with its way from replica to replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.engine import too_long
from simulator.fleet_result import FleetResult, combine
from simulator.hand_over import HandOver
from simulator.metrics import Floats, distribution, rounded
from simulator.recorder import TOO_LARGE, Rows
from simulator.result import Result
from simulator.table import Columns

if TYPE_CHECKING:
    from simulator.disaggregation import Disaggregation
    from simulator.fleet_replica import Replica
    from simulator.request import Request

__all__ = ["STAGES", "DisaggregatedRows", "combine_disaggregated", "stage_seconds"]

TIMES = (
    "arrival_s", "first_scheduled_s", "prefilled_s", "blocks_taken_s", "transfer_start_s", "transfer_end_s",
    "decode_scheduled_s", "first_token_s", "finish_s",
)  # fmt: skip
COUNTS = (
    "prompt_tokens", "output_tokens", "cached_tokens", "decode_cached_tokens", "transferred_bytes", "padding_bytes",
    "num_preemptions", "priority", "prefill_replica", "decode_replica",
)  # fmt: skip
NAMES = ("request_id", "session", "status", "reason")

STAGES = {
    "prefill_queue": ("arrival_s", "first_scheduled_s"),
    "prefill": ("first_scheduled_s", "prefilled_s"),
    "decode_queue": ("prefilled_s", "blocks_taken_s"),
    "link_queue": ("blocks_taken_s", "transfer_start_s"),
    "transfer": ("transfer_start_s", "transfer_end_s"),
    "admission": ("transfer_end_s", "decode_scheduled_s"),
    "first_step": ("decode_scheduled_s", "first_token_s"),
    "decode": ("first_token_s", "finish_s"),
}
"""A finished request's time, from one column to the next: they add up to its end-to-end latency."""


class DisaggregatedRows:
    """A row for each request that ended, as numbers: a run may have millions."""

    def __init__(self) -> None:
        self._numbers = Rows((*TIMES, *COUNTS), COUNTS)
        self._names: dict[str, list[str | None]] = {name: [] for name in NAMES}

    def append(self, hand_over: HandOver, status: str) -> None:
        """A request ended."""
        row = hand_over.arrival.row
        times = (nan if time_s is None else time_s for time_s in _times(hand_over))
        self._numbers.append((*times, *_counts(hand_over)))
        reason = _reason(hand_over) if status == "rejected" else None
        for column, name in zip(self._names.values(), (row.request_id, row.session, status, reason), strict=True):
            column.append(name)

    def columns(self) -> dict[str, np.ndarray]:
        """The table."""
        names = {name: np.array(values, dtype=object) for name, values in self._names.items()}
        return {"request_id": names.pop("request_id"), **self._numbers.columns(), **names}


def _times(hand_over: HandOver) -> tuple[float | None, ...]:
    """In the order of `TIMES`."""
    prefill, decode, transfer = hand_over.prefill_request, hand_over.decode_request, hand_over.transfer
    assert prefill is not None
    travelled_s = (None,) * 3 if transfer is None else (transfer.asked_s, transfer.started_s, transfer.arrived_s)
    decoded_s = (None, None, None) if decode is None else _decoded_s(decode)
    return (
        hand_over.arrival.row.arrival_s,
        prefill.first_scheduled_s,
        prefill.finish_s,
        *travelled_s,
        *decoded_s,
    )


def _decoded_s(request: Request) -> tuple[float | None, ...]:
    return request.first_scheduled_s, request.first_token_s, request.finish_s


def _counts(hand_over: HandOver) -> tuple[int, ...]:
    """In the order of `COUNTS`."""
    row, prefill, decode = hand_over.arrival.row, hand_over.prefill_request, hand_over.decode_request
    assert prefill is not None
    assert hand_over.prefill is not None
    return (
        row.prompt_tokens,
        row.output_tokens,
        prefill.cached_tokens,
        0 if decode is None else decode.cached_tokens,
        0 if hand_over.transfer is None else hand_over.transfer.num_bytes,
        hand_over.padding_bytes,
        prefill.num_preemptions + (0 if decode is None else decode.num_preemptions),
        row.priority,
        hand_over.prefill.number,
        -1 if hand_over.decode is None else hand_over.decode.number,
    )


def _reason(hand_over: HandOver) -> str:
    """Why it was rejected, by the replica that it reached last."""
    request = hand_over.decode_request or hand_over.prefill_request
    replica: Replica | None = hand_over.decode or hand_over.prefill
    assert request is not None
    assert replica is not None
    max_model_len = replica.deployment.scheduler_settings.max_model_len
    return too_long(max_model_len) if request.max_tokens > max_model_len else TOO_LARGE


def combine_disaggregated(world: Disaggregation, results: Sequence[Result], said: dict[str, Any]) -> FleetResult:
    """All replicas' results as one; `said` is what to say of the fleet."""
    requests = world.rows.columns()
    result = combine(world, results, said, requests)
    for replica in result.summary["replicas"]:
        replica["role"] = "decode"
    for replica in result.summary["replicas"][: len(world.prefill_replicas)]:
        replica["role"] = "prefill"
    summary = {
        **result.summary,
        "stages_s": {name: rounded(_mean(seconds)) for name, seconds in stage_seconds(requests).items()},
        "transfers": _transfers(world, requests, result.summary["makespan_s"]),
    }
    return replace(result, summary=summary)


def stage_seconds(requests: Columns) -> dict[str, Floats]:
    """For each of `STAGES` [finished requests]; a request that loaded nothing spent no time on it."""
    is_finished = np.asarray(requests["status"]) == "finished"
    times = {name: np.asarray(requests[name], dtype=np.float64)[is_finished] for name in TIMES}
    for name in ("blocks_taken_s", "transfer_start_s", "transfer_end_s"):
        times[name] = np.where(np.isnan(times[name]), times["decode_scheduled_s"], times[name])
    return {name: times[end] - times[start] for name, (start, end) in STAGES.items()}


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _transfers(world: Disaggregation, requests: Mapping[str, np.ndarray], span_s: float) -> dict[str, Any]:
    """What travelled. Durations are those of the bytes and the latency; who waited for the link, `link_queue_s`."""
    has_any = ~np.isnan(requests["transfer_end_s"])
    times = {name: requests[name][has_any] for name in ("blocks_taken_s", "transfer_start_s", "transfer_end_s")}
    ports = {
        "out": [replica.sends for replica in world.prefill_replicas],
        "in": [replica.receives for replica in world.decode_replicas],
    }
    transfers: dict[str, Any] = rounded(
        {
            "requests": int(has_any.sum()),
            "bytes": int(requests["transferred_bytes"].sum()),
            "padding_bytes": int(requests["padding_bytes"].sum()),
            "duration_s": distribution(times["transfer_end_s"] - times["transfer_start_s"]),
            "link_queue_s": distribution(times["transfer_start_s"] - times["blocks_taken_s"]),
        }
    )
    for way, there in ports.items():
        transfers[f"link_utilization_{way}"] = [rounded(port.busy_s / span_s if span_s else 0.0) for port in there]
    return transfers
