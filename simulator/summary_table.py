"""A summary in words and units, for a person: the terminal and the report show the same lines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "LATENCY_NAMES",
    "STAGE_NAMES",
    "flatten",
    "format_bytes",
    "format_number",
    "format_seconds",
    "format_share",
    "latency_rows",
    "list_reasons",
    "listed",
    "replica_rows",
    "summary_lines",
    "transfer_lines",
]

LATENCY_NAMES = {
    "ttft_s": "Time to first token (TTFT)",
    "tpot_s": "Time per output token (TPOT)",
    "itl_s": "Inter-token latency (ITL)",
    "e2e_s": "End-to-end latency",
    "queue_s": "Time in queue",
}
"""What each distribution of the summary is called."""

STAGE_NAMES = {
    "prefill_queue": "prefill queue",
    "prefill": "prefill",
    "decode_queue": "decode queue",
    "link_queue": "link queue",
    "transfer": "transfer",
    "admission": "admission",
    "first_step": "first step",
    "decode": "decode",
}
"""What each stage of a disaggregated request is called, in order."""

NO_DATA = "–"
_SHOWN_PERCENTILES = ("p50", "p90", "p99", "max")
_SHOWN_REASONS = 3
_MINUTES_FROM_S = 120
_HOURS_FROM_S = 7200
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def summary_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, how much) of a summary that `metrics.summarize` made, in the order in which to show them."""
    throughput = summary["throughput"]
    return [
        *_request_lines(summary["requests"]),
        ("Makespan", format_seconds(summary["makespan_s"])),
        *((name, _spread(summary[key])) for key, name in LATENCY_NAMES.items()),
        ("Requests per second", format_number(throughput["requests_per_s"])),
        ("Prompt tokens per second", format_number(throughput["prompt_tokens_per_s"])),
        ("Output tokens per second", format_number(throughput["output_tokens_per_s"])),
        ("Prefix cache hit rate", format_share(summary["prefix_cache_hit_rate"])),
        ("KV cache usage", _mean_and_max(summary["kv_cache_usage"], format_share)),
        ("Wasted bytes of held blocks", _wasted(summary["wasted_bytes"])),
        ("Running requests", _mean_and_max(summary["running"], format_number)),
        ("Waiting requests", _mean_and_max(summary["waiting"], format_number)),
        ("Preemptions", _preemptions(summary["preemptions"])),
        ("Evicted blocks", f"{summary['evictions']:,}"),
        *_host_lines(summary.get("host_tier")),
        ("Steps", f"{summary['steps']:,}"),
        *_operation_lines(summary.get("operations")),
        *_session_lines(summary.get("sessions")),
        *transfer_lines(summary),
        *((f"Replica {row.pop('Replica')}", ", ".join(map(" ".join, row.items()))) for row in replica_rows(summary)),
    ]


def transfer_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What travelled between prefill and decode replicas, and where the time went; nothing of other runs."""
    if "transfers" not in summary:
        return []
    transfers, stages = summary["transfers"], summary["stages_s"]
    used = [*transfers["link_utilization_out"], *transfers["link_utilization_in"]]
    return [
        ("Transferred", f"{format_bytes(transfers['bytes'])} in {transfers['requests']:,} transfers"),
        ("Transfer", _spread(transfers["duration_s"])),
        ("Waiting for the link", _spread(transfers["link_queue_s"])),
        ("Link use, each replica", ", ".join(map(format_share, used))),
        ("Mean time in", ", ".join(f"{STAGE_NAMES[name]} {format_seconds(stages[name])}" for name in STAGE_NAMES)),
    ]


def replica_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Column to text for each replica of a fleet; none of a single server."""
    return [
        {
            "Replica": str(number),
            "server": _server(replica["scenario"]) + (f" ({replica['role']})" if "role" in replica else ""),
            "requests": f"{replica['requests']['arrived']:,}",
            "hit rate": format_share(replica["prefix_cache_hit_rate"]),
            "in flight": format_number(replica["in_flight"]["mean"]),
            "usage": format_share(replica["kv_cache_usage"]["mean"]),
            "TTFT p50": format_seconds(replica["ttft_s"]["p50"]),
            "p99": format_seconds(replica["ttft_s"]["p99"]),
            **({"up": format_share(replica["availability"])} if "availability" in replica else {}),
        }
        for number, replica in enumerate(summary.get("replicas", ()))
    ]


def _server(scenario: Mapping[str, Any]) -> str:
    """2 × H200."""
    gpu, ranks = scenario["gpu"] or "server", scenario["tensor_parallel_size"]
    return f"{ranks} × {gpu}" if ranks > 1 else str(gpu)


def latency_rows(summary: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """(name, measure to text) of each distribution: mean, percentiles and maximum."""
    return [
        (name, {measure: format_seconds(seconds) for measure, seconds in summary[key].items()})
        for key, name in LATENCY_NAMES.items()
    ]


def list_reasons(requests: Mapping[str, Any], end: str = "rejected") -> str:
    """Why requests were rejected, or lost, and how many where there are several reasons: the most frequent ones."""
    reasons = requests[f"{end}_reasons"]
    if len(reasons) == 1:
        return str(next(iter(reasons)))
    shown = [f"{count:,} {reason}" for reason, count in list(reasons.items())[:_SHOWN_REASONS]]
    others = sum(reasons.values()) - sum(list(reasons.values())[:_SHOWN_REASONS])
    return ", ".join([*shown, f"{others:,} for other reasons"] if others else shown)


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
    """43.2%, 100%."""
    return NO_DATA if share is None else f"{share:.1%}".replace(".0%", "%")


def format_number(value: float | None) -> str:
    """Whole numbers in full, others with three significant digits or at least the whole part: 12,345; 1.23; 0.0456."""
    if value is None:
        return NO_DATA
    if value == round(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.3g}"


def listed(words: Sequence[str]) -> str:
    """At least one: a; a and b; a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every value that is no object, however deep."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _host_lines(host: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Of a host tier, if there is one."""
    if host is None:
        return []
    out, back = (f"{format_share(host['link_utilization'][way])} of the link" for way in ("out", "in"))
    return [
        ("Host tier hit rate", f"{format_share(host['host_hit_rate'])} beside {format_share(host['device_hit_rate'])}"),
        ("Host tier", f"{format_bytes(host['used_bytes'])} of {format_bytes(host['capacity_bytes'])}"),
        ("Copied to the host", f"{format_bytes(host['bytes_out'])} ({out}), {host['dropped_blocks']:,} blocks dropped"),
        ("Fetched from the host", f"{format_bytes(host['bytes_in'])} ({back}) in {host['fetches']:,} fetches"),
        ("Time of a fetch", _spread(host["fetch_s"])),
        ("Computed instead of fetched", f"by {host['declined_requests']:,} requests"),
    ]


def _request_lines(requests: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [("Requests finished", f"{requests['finished']:,} of {requests['arrived']:,}")]
    for end in ("rejected", "lost"):
        if requests.get(end):
            lines.append((f"Requests {end}", f"{requests[end]:,} ({list_reasons(requests, end)})"))
    if requests["unfinished"]:
        lines.append(("Requests unfinished", f"{requests['unfinished']:,}"))
    if requests.get("left_out"):
        lines.append(("Left out of latencies", f"the first {requests['left_out']:,}"))
    return lines


def _operation_lines(operations: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What became of a fleet's replicas, where anything may have."""
    if operations is None:
        return []
    lines = [
        ("Replicas up", _mean_and_max(operations["replicas_up"], format_number)),
        ("Replicas paid for", format_seconds(operations["replica_s"])),
    ]
    if operations["failures"]:
        retries, tokens = operations["retries"], operations["lost_tokens"]
        lines.append(("Failures of replicas", f"{operations['failures']:,}"))
        lines.append(("Lost with them", f"{tokens:,} output tokens; {retries:,} times a request was tried again"))
    return lines


def _session_lines(sessions: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Of a run with sessions."""
    if sessions is None:
        return []
    return [
        ("Sessions completed", f"{sessions['completed']:,} of {sessions['started']:,}"),
        ("Sessions at once", _mean_and_max(sessions["at_once"], format_number)),
        ("Calls of a session", _mean_and_max(sessions["calls"], format_number)),
        ("Session duration", _spread(sessions["duration_s"])),
        ("Time in the model", f"{_spread(sessions['model_s'])} ({format_share(sessions['model_share'])} of all)"),
    ]


def _spread(distribution: Mapping[str, float | None]) -> str:
    if distribution["max"] is None:
        return NO_DATA
    return ", ".join(f"{measure} {format_seconds(distribution[measure])}" for measure in _SHOWN_PERCENTILES)


def _mean_and_max(measure: Mapping[str, float | None], as_text: Callable[[float | None], str]) -> str:
    if measure["mean"] is None:
        return NO_DATA
    return f"mean {as_text(measure['mean'])}, max {as_text(measure['max'])}"


def _wasted(wasted: Mapping[str, float | None]) -> str:
    spread = _mean_and_max(wasted, format_bytes)
    return (
        spread
        if wasted["share_of_held"] is None
        else f"{spread} ({format_share(wasted['share_of_held'])} of held bytes)"
    )


def _preemptions(preemptions: Mapping[str, int]) -> str:
    total, requests = preemptions["total"], preemptions["requests"]
    return f"{total:,} (of {requests:,} {'request' if requests == 1 else 'requests'})" if total else "0"
