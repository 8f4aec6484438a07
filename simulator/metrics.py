"""Measure a run: pure functions of the tables that it recorded (see `simulator.result.Result`).

`summarize` is the whole; its numbers are rounded at the very end, floats to six significant digits
and bytes to whole ones, so that equal runs give equal text. What has no data is None, never NaN.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcache.ledger import NEEDED_PARTS, WASTED_PARTS
from simulator.host_tally import HostTally
from simulator.table import Columns

__all__ = [
    "PERCENTILES",
    "STATISTICS",
    "Timeline",
    "arrival_after",
    "count_requests",
    "distribution",
    "inter_token_latencies",
    "makespan_s",
    "num_at_once",
    "over_time",
    "rounded",
    "since",
    "summarize",
    "times_per_output_token_s",
    "times_to_first_token_s",
    "weighted_percentiles",
]

Floats = npt.NDArray[np.float64]

PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", *(f"p{percentile}" for percentile in PERCENTILES), "max")
"""Of a distribution."""
_SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Timeline:
    """One quantity over time, in bins of equal length."""

    edges_s: Floats
    """[bins + 1] where bins begin and end."""
    mean: Floats
    """[bins] time-weighted."""
    low: Floats
    """[bins] the least in the bin."""
    high: Floats
    """[bins] the most in the bin."""


def summarize(  # noqa: PLR0913
    requests: Columns,
    steps: Columns,
    token_gaps: Columns,
    capacity: Mapping[str, Any],
    host: HostTally | None = None,
    *,
    may_lose: bool = False,
    num_warmups: int = 0,
) -> dict[str, Any]:
    """All measures of a run as plain values, in a fixed order of keys, ready for JSON.

    `host` is of its host tier; lost requests are counted where any may have been. The first `num_warmups` requests to
    arrive count in no latency; gaps between tokens that are not one step long are those of the whole run.
    """
    span_s = makespan_s(requests, steps)
    from_s = arrival_after(requests, num_warmups)
    measured = since(requests, "arrival_s", from_s)
    gaps_s, gap_counts = inter_token_latencies(since(steps, "start_s", from_s), token_gaps)
    summary = {
        "requests": count_requests(requests, may_lose=may_lose)
        | ({"left_out": int(np.sum(_floats(requests, "arrival_s") < from_s))} if num_warmups else {}),
        "makespan_s": span_s,
        "ttft_s": distribution(times_to_first_token_s(measured)),
        "tpot_s": distribution(times_per_output_token_s(measured)),
        "itl_s": distribution(gaps_s, gap_counts),
        "e2e_s": distribution(_elapsed_s(_where(measured, _finished(measured), "arrival_s", "finish_s"), "finish_s")),
        "queue_s": distribution(_elapsed_s(measured, "first_scheduled_s")),
        "throughput": _throughput(requests, span_s),
        "prefix_cache_hit_rate": _share_of_prompts(requests, "cached_tokens"),
        "preemptions": {
            "total": int(_values(requests, "num_preemptions").sum()),
            "requests": int(np.count_nonzero(_values(requests, "num_preemptions"))),
        },
        "kv_cache_usage": _kv_cache_usage(steps, capacity, span_s),
        "running": _mean_and_max(steps, "running", span_s),
        "waiting": _mean_and_max(steps, "waiting", span_s),
        "wasted_bytes": _wasted_bytes(steps),
        "steps": int(_values(steps, "num_steps").sum()),
        "evictions": int(_values(steps, "evictions").sum()),
    }
    if host is not None:
        summary["host_tier"] = _host_tier(host, requests, span_s)
    return {key: rounded(value) for key, value in summary.items()}


def _host_tier(tally: HostTally, requests: Columns, span_s: float) -> dict[str, Any]:
    link_s = span_s * tally.num_replicas
    busy_s = {"out": tally.busy_out_s, "in": tally.busy_in_s}
    return {
        "capacity_bytes": tally.capacity_bytes,
        "used_bytes": tally.used_bytes,
        "device_hit_rate": _share_of_prompts(requests, "cached_tokens"),
        "host_hit_rate": _share_of_prompts(requests, "loaded_tokens"),
        "bytes_out": tally.bytes_out,
        "bytes_in": tally.bytes_in,
        "link_utilization": {name: busy / link_s if link_s else None for name, busy in busy_s.items()},
        "fetches": tally.num_fetches,
        "fetched_tokens": tally.fetched_tokens,
        "fetch_s": distribution(np.array(tally.fetches_s, dtype=np.float64)),
        "declined_requests": tally.declined_requests,
        "evicted_blocks": tally.evicted_blocks,
        "dropped_blocks": tally.dropped_blocks,
        "dropped_bytes": tally.dropped_bytes,
    }


def num_at_once(starts_s: Floats, ends_s: Floats) -> tuple[Floats, Floats]:
    """(different times in seconds, in order; how many have begun and not ended from each on).

    A place that is taken again at once stays taken.
    """
    times_s, nth = np.unique(np.concatenate([starts_s, ends_s]), return_inverse=True)
    changes = np.repeat([1.0, -1.0], [len(starts_s), len(ends_s)])
    return times_s, np.bincount(nth, changes, len(times_s)).cumsum()


def makespan_s(requests: Columns, steps: Columns) -> float:
    """Seconds from the first arrival to the end of the last step; 0 where nothing ran."""
    arrivals_s, ends_s = _floats(requests, "arrival_s"), _floats(steps, "end_s")
    return float(ends_s.max() - arrivals_s.min()) if len(arrivals_s) and len(ends_s) else 0.0


def arrival_after(requests: Columns, num_warmups: int) -> float:
    """When the first request arrived, in seconds, that is no warm-up; where all are, never."""
    if not num_warmups:
        return -math.inf
    arrivals_s = np.sort(_floats(requests, "arrival_s"))
    return float(arrivals_s[num_warmups]) if num_warmups < len(arrivals_s) else math.inf


def since(table: Columns, column: str, from_s: float) -> Columns:
    """The rows of a table whose time in this column is `from_s` or later."""
    if from_s == -math.inf:
        return table
    kept = _floats(table, column) >= from_s
    return {name: np.asarray(values)[kept] for name, values in table.items()}


def times_to_first_token_s(requests: Columns) -> Floats:
    """TTFT, in seconds, of each request that got a first token: queue included."""
    return _elapsed_s(requests, "first_token_s")


def times_per_output_token_s(requests: Columns) -> Floats:
    """TPOT, in seconds: (last - first token)/(output tokens - 1) of each finished request with two tokens or more."""
    has_several = _finished(requests) & (_values(requests, "output_tokens") >= 2)
    several = _where(requests, has_several, "first_token_s", "finish_s", "output_tokens")
    decode_s = _floats(several, "finish_s") - _floats(several, "first_token_s")
    return decode_s / (_floats(several, "output_tokens") - 1)


def inter_token_latencies(steps: Columns, token_gaps: Columns) -> tuple[Floats, Floats]:
    """ITL: (seconds, how often), both [kinds of gap], over all requests."""
    num_steps = _floats(steps, "num_steps")
    gaps_s = np.concatenate([_row_seconds(steps) / num_steps, _floats(token_gaps, "gap_s")])
    counts = np.concatenate([_floats(steps, "num_decodes") * num_steps, _floats(token_gaps, "count")])
    happened = counts > 0
    return gaps_s[happened], counts[happened]


def weighted_percentiles(values: Floats, counts: Floats, percentiles: Sequence[float]) -> Floats:
    """[percentiles] of `values` [n], each of which occurs `counts` [n] times (whole numbers).

    The same as `numpy.percentile(numpy.repeat(values, counts), percentiles)`, without the copies: between
    the two occurrences around position p/100 × (total − 1) it interpolates linearly.
    """
    order = np.argsort(values, kind="stable")
    in_order, last = values[order], np.cumsum(counts[order])
    positions = np.asarray(percentiles, dtype=np.float64) / 100 * (last[-1] - 1)
    below = np.floor(positions)
    lower = in_order[np.searchsorted(last, below, side="right")]
    upper = in_order[np.searchsorted(last, np.minimum(below + 1, last[-1] - 1), side="right")]
    between: Floats = lower + (upper - lower) * (positions - below)
    return between


def over_time(starts_s: Floats, ends_s: Floats, values: Floats, edges_s: Floats) -> Timeline:
    """What `values` [rows] were in each of the bins between `edges_s` [bins + 1].

    A value holds from its start to its end [rows]; rows come in order and do not overlap. Between them,
    and where there is none, the value is 0.
    """
    if not len(values):
        zeros = np.zeros(len(edges_s) - 1)
        return Timeline(edges_s, zeros, zeros, zeros)
    first = np.searchsorted(ends_s, edges_s[:-1], side="right")
    behind = np.searchsorted(starts_s, edges_s[1:], side="left")
    low, high = _extremes(values, first, behind)
    busy = _bin_means(starts_s, ends_s, np.ones_like(values), edges_s)
    has_idle_time = busy < 1 - 1e-9
    low, high = np.where(has_idle_time, np.minimum(low, 0.0), low), np.where(has_idle_time, np.maximum(high, 0.0), high)
    mean = _bin_means(starts_s, ends_s, values, edges_s)
    return Timeline(edges_s, np.clip(mean, low, high), low, high)


def _bin_means(starts_s: Floats, ends_s: Floats, values: Floats, edges_s: Floats) -> Floats:
    # The integral up to any time is a line between the rows' ends, so a bin's mean is a difference of two.
    integral = np.concatenate([[0.0], np.cumsum(values * (ends_s - starts_s))])
    knots_s = np.column_stack([starts_s, ends_s]).ravel()
    at_knots = np.column_stack([integral[:-1], integral[1:]]).ravel()
    means: Floats = np.diff(np.interp(edges_s, knots_s, at_knots)) / np.diff(edges_s)
    return means


def _extremes(values: Floats, first: npt.NDArray[np.intp], behind: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
    """(least, most) of values[first:behind] for each pair; 0 for an empty one."""
    bounds = np.column_stack([first, np.maximum(first, behind)]).ravel()
    padded = np.append(values, 0.0)  # a range may begin or end behind the last value
    is_empty = first >= behind
    low, high = (reduce.reduceat(padded, bounds)[::2] for reduce in (np.minimum, np.maximum))
    return np.where(is_empty, 0.0, low), np.where(is_empty, 0.0, high)


def count_requests(requests: Columns, *, may_lose: bool = False) -> dict[str, Any]:
    """How requests ended, and why they did not finish; those that were lost only where any may have been."""
    status = Counter(_values(requests, "status"))
    counts: dict[str, Any] = {"arrived": status.total(), "finished": status["finished"]}
    for end in ("rejected", "lost") if may_lose else ("rejected",):
        counts |= {end: status[end], f"{end}_reasons": _count_reasons(requests, end)}
    return {**counts, "unfinished": status["unfinished"]}


def _count_reasons(requests: Columns, status: str) -> dict[str, int]:
    """How often each reason for this end occurs, the most frequent first."""
    reasons = _where(requests, _values(requests, "status") == status, "reason")["reason"]
    counts = Counter(reason if isinstance(reason, str) else "unknown" for reason in reasons)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _throughput(requests: Columns, span_s: float) -> dict[str, float | None]:
    """Per second of the makespan, what finished requests asked for and got."""
    finished = _where(requests, _finished(requests), "prompt_tokens", "output_tokens")
    totals = {
        "requests_per_s": len(finished["prompt_tokens"]),
        "prompt_tokens_per_s": finished["prompt_tokens"].sum(),
        "output_tokens_per_s": finished["output_tokens"].sum(),
    }
    return {name: float(total) / span_s if span_s > 0 else None for name, total in totals.items()}


def _share_of_prompts(requests: Columns, column: str) -> float | None:
    """Prompt tokens that need not be computed at the first admission, of all prompt tokens of admitted requests."""
    is_admitted = ~np.isnan(_floats(requests, "first_scheduled_s"))
    admitted = _where(requests, is_admitted, "prompt_tokens", column)
    prompt_tokens = float(admitted["prompt_tokens"].sum())
    return float(admitted[column].sum()) / prompt_tokens if prompt_tokens else None


def _kv_cache_usage(steps: Columns, capacity: Mapping[str, Any], span_s: float) -> dict[str, float | None]:
    """Held blocks, of all blocks but the null block."""
    usable_blocks = capacity["num_blocks"] - 1
    held = _mean_and_max(steps, "held_blocks", span_s)
    return {
        name: blocks / usable_blocks if blocks is not None and usable_blocks > 0 else None
        for name, blocks in held.items()
    }


def _mean_and_max(steps: Columns, column: str, span_s: float) -> dict[str, float | int | None]:
    """Mean over the makespan, idle time counted as 0, and the most in any step, a whole number."""
    values = _floats(steps, column)
    if not len(values) or span_s <= 0:
        return {"mean": None, "max": None}
    return {"mean": float(np.sum(values * _row_seconds(steps))) / span_s, "max": int(values.max())}


def _wasted_bytes(steps: Columns) -> dict[str, float | int | None]:
    """Bytes that requests hold and nobody needs, over the sampled rows."""
    is_sampled = ~np.isnan(_floats(steps, "free_bytes"))
    wasted = _sum_of_parts(steps, WASTED_PARTS)[is_sampled]
    if not len(wasted):
        return {"mean": None, "max": None, "share_of_held": None}
    held = float(np.sum(wasted + _sum_of_parts(steps, NEEDED_PARTS)[is_sampled]))
    return {
        "mean": round(float(wasted.mean())),
        "max": round(float(wasted.max())),
        "share_of_held": float(np.sum(wasted)) / held if held else None,
    }


def _sum_of_parts(steps: Columns, parts: Iterable[str]) -> Floats:
    total: Floats = np.sum([_floats(steps, f"{part}_bytes") for part in parts], axis=0)
    return total


def distribution(values: Floats, counts: Floats | None = None) -> dict[str, float | None]:
    """Mean, percentiles and maximum of `values` [n], each of which occurs `counts` [n] times, or once."""
    if not len(values):
        return dict.fromkeys(STATISTICS)
    if counts is None:
        percentiles = np.percentile(values, PERCENTILES)
    else:
        percentiles = weighted_percentiles(values, counts, PERCENTILES)
    measures = [np.average(values, weights=counts), *percentiles, values.max()]
    return dict(zip(STATISTICS, map(float, measures), strict=True))


def _elapsed_s(requests: Columns, column: str) -> Floats:
    """From arrival until `column`, in seconds, of those requests where it happened."""
    elapsed_s = _floats(requests, column) - _floats(requests, "arrival_s")
    return elapsed_s[~np.isnan(elapsed_s)]


def _finished(requests: Columns) -> npt.NDArray[np.bool_]:
    is_finished: npt.NDArray[np.bool_] = _values(requests, "status") == "finished"
    return is_finished


def _row_seconds(steps: Columns) -> Floats:
    return _floats(steps, "end_s") - _floats(steps, "start_s")


def _where(table: Columns, chosen: npt.NDArray[np.bool_], *columns: str) -> dict[str, npt.NDArray[Any]]:
    """Some columns of the chosen rows."""
    return {column: _values(table, column)[chosen] for column in columns}


def _values(table: Columns, column: str) -> npt.NDArray[Any]:
    return np.asarray(table[column])


def _floats(table: Columns, column: str) -> Floats:
    return np.asarray(table[column], dtype=np.float64)


def rounded(value: Any) -> Any:
    """A float to six significant digits, None if it is not finite; all that are in a dict or list; else as it is."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{_SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
    return value
