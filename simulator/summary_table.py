"""A summary in words and units, for a person: the terminal and the report show the same lines."""

from collections.abc import Mapping
from typing import Any

__all__ = [
    "LATENCY_NAMES",
    "format_bytes",
    "format_number",
    "format_seconds",
    "format_share",
    "latency_rows",
    "summary_lines",
]

LATENCY_NAMES = {
    "ttft_s": "Time to first token (TTFT)",
    "tpot_s": "Time per output token (TPOT)",
    "itl_s": "Inter-token latency (ITL)",
    "e2e_s": "End-to-end latency",
    "queue_s": "Time in queue",
}
"""What each distribution of the summary is called."""

NO_DATA = "–"
_SHOWN_PERCENTILES = ("p50", "p90", "p99", "max")
_MINUTES_FROM_S = 120
_HOURS_FROM_S = 7200
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def summary_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, how much) of a summary that `metrics.summarize` made, in the order in which to show them."""
    throughput, usage = summary["throughput"], summary["kv_cache_usage"]
    running, waiting = summary["running"], summary["waiting"]
    return [
        *_request_lines(summary["requests"]),
        ("Makespan", format_seconds(summary["makespan_s"])),
        *((name, _spread(summary[key])) for key, name in LATENCY_NAMES.items()),
        ("Requests per second", format_number(throughput["requests_per_s"])),
        ("Prompt tokens per second", format_number(throughput["prompt_tokens_per_s"])),
        ("Output tokens per second", format_number(throughput["output_tokens_per_s"])),
        ("Prefix cache hit rate", format_share(summary["prefix_cache_hit_rate"])),
        ("KV cache usage", f"mean {format_share(usage['mean'])}, max {format_share(usage['max'])}"),
        ("Wasted bytes of held blocks", _wasted(summary["wasted_bytes"])),
        ("Running requests", f"mean {format_number(running['mean'])}, max {format_number(running['max'])}"),
        ("Waiting requests", f"mean {format_number(waiting['mean'])}, max {format_number(waiting['max'])}"),
        ("Preemptions", _preemptions(summary["preemptions"])),
        ("Evicted blocks", f"{summary['evictions']:,}"),
        ("Steps", f"{summary['steps']:,}"),
    ]


def latency_rows(summary: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """(name, measure to text) of each distribution: mean, percentiles and maximum."""
    return [
        (name, {measure: format_seconds(seconds) for measure, seconds in summary[key].items()})
        for key, name in LATENCY_NAMES.items()
    ]


def format_seconds(seconds: float | None) -> str:
    """45.6 ms, 1.23 s, 5 min 12 s, 3 h 12 min."""
    if seconds is None:
        return NO_DATA
    if seconds >= _HOURS_FROM_S:
        minutes = round(seconds / 60)
        return f"{minutes // 60:,} h {minutes % 60} min"
    if seconds >= _MINUTES_FROM_S:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    shown = float(f"{seconds:.3g}")  # rounded first: 0.9996 s is 1 s, not 1,000 ms
    for per_second, unit in ((1, "s"), (1_000, "ms"), (1_000_000, "µs")):
        if shown * per_second >= 1:
            return f"{format_number(shown * per_second)} {unit}"
    return f"{format_number(shown * 1e6)} µs" if shown > 0 else "0 s"


def format_bytes(num_bytes: float | None) -> str:
    """12.3 GiB, 128 KiB, 17 B."""
    if num_bytes is None:
        return NO_DATA
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit + 1 < len(_BYTE_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{format_number(value)} {_BYTE_UNITS[unit]}"


def format_share(share: float | None) -> str:
    """43.2%."""
    return NO_DATA if share is None else f"{share:.1%}"


def format_number(value: float | None) -> str:
    """Whole numbers in full, others with three significant digits or at least the whole part: 12,345; 1.23; 0.0456."""
    if value is None:
        return NO_DATA
    if value == round(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.3g}"


def _request_lines(requests: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [("Requests finished", f"{requests['finished']:,} of {requests['arrived']:,}")]
    if requests["rejected"]:
        lines.append(("Requests rejected", _rejected(requests)))
    if requests["unfinished"]:
        lines.append(("Requests unfinished", f"{requests['unfinished']:,}"))
    return lines


def _rejected(requests: Mapping[str, Any]) -> str:
    reasons = requests["rejected_reasons"]
    if len(reasons) == 1:
        return f"{requests['rejected']:,} ({next(iter(reasons))})"
    return f"{requests['rejected']:,} ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})"


def _spread(distribution: Mapping[str, float | None]) -> str:
    if distribution["max"] is None:
        return NO_DATA
    return ", ".join(f"{measure} {format_seconds(distribution[measure])}" for measure in _SHOWN_PERCENTILES)


def _wasted(wasted: Mapping[str, float | None]) -> str:
    if wasted["mean"] is None:
        return NO_DATA
    share = f" ({format_share(wasted['share_of_held'])} of held bytes)" if wasted["share_of_held"] is not None else ""
    return f"mean {format_bytes(wasted['mean'])}, max {format_bytes(wasted['max'])}{share}"


def _preemptions(preemptions: Mapping[str, int]) -> str:
    total, requests = preemptions["total"], preemptions["requests"]
    return f"{total:,} (of {requests:,} {'request' if requests == 1 else 'requests'})" if total else "0"
