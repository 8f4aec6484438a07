"""Report a run as one HTML file that needs nothing else: what happened, in words, tables and figures."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulator.binding import Binding, binding_of
from simulator.measured_memory import measured_lines
from simulator.plots import INK, figures
from simulator.plots_fleet import fleet_figures
from simulator.result import Result
from simulator.summary_table import (
    format_bytes,
    format_number,
    format_share,
    latency_rows,
    list_reasons,
    replica_rows,
    summary_lines,
)

__all__ = ["Verdict", "inline_svg", "judge", "render_page", "render_report", "write_report"]

_TEMPLATES = Path(__file__).parent / "templates"
_LIMITS: dict[Binding, str | None] = {
    "nothing": None,
    "kv_memory": "KV cache memory seems to bind: the pool was full while requests waited.",
    "token_budget": "max_num_batched_tokens seems to bind: steps were full while requests waited.",
    "step_speed": "The speed of the steps seems to bind: requests waited though blocks were free.",
}
"""What is said of each, where nothing more is known."""

_FIGURE_TITLES = {
    "kv_usage": "KV cache usage",
    "requests": "Running and waiting requests",
    "latencies": "Latency of requests",
    "throughput": "Throughput",
    "pool_bytes": "Where the pool's bytes are",
    "replicas": "Load and hit rate of each replica",
}
_FIGURE_CAPTIONS = {
    "kv_usage": "Blocks that requests hold, and above them free blocks whose content can still be hit.",
    "requests": "The line is the mean over time, the band reaches from the least to the most.",
    "latencies": "How many requests got their first token, and each further one on average, within a time.",
    "throughput": "Prompt tokens computed, without those found in the prefix cache, and tokens decoded.",
    "pool_bytes": "Sampled; what left every window, empty slots and padding are held, and nobody needs them.",
    "replicas": "Running requests, and of the prompt tokens admitted the share that came from the prefix cache.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run held, in words."""

    level: Literal["held", "strained", "failed"]
    answer: str
    """A few words: did it hold?"""
    facts: str
    """A sentence with the figures that matter most."""
    limit: str
    """A sentence: what seems to bind."""

    @property
    def text(self) -> str:
        """All of it, for one line."""
        return f"{self.answer}: {self.facts} {self.limit}"


def judge(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> Verdict:
    """Say whether a run held and what binds.

    It failed if a request remained unfinished, or none finished. It held under strain if something binds.
    What binds: see `binding.binding_of`. Rejections have reasons of their own, such as a request's length: they
    are named, and no sign of strain.
    """
    requests, limit = summary["requests"], _find_limits(summary, scenario)
    if not requests["arrived"]:
        return Verdict("held", "Nothing to do", "no request arrived.", "Nothing seems to bind.")
    facts = _state_facts(summary)
    if requests["rejected"]:
        no_limit = f"Rejected: {list_reasons(requests)}. Nothing else seems to bind."
    else:
        no_limit = "Nothing seems to bind."
    if requests["unfinished"] or not requests["finished"]:
        return Verdict("failed", "It did not hold", facts, limit or no_limit)
    if limit:
        return Verdict("strained", "It held under strain", facts, limit)
    return Verdict("held", "It held, rejections apart" if requests["rejected"] else "It held", facts, no_limit)


def write_report(result: Result, path: str | Path) -> None:
    """Write the report to `path`; a reader never sees half of it."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(render_report(result), encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def render_report(result: Result) -> str:
    """The report as HTML; equal results give equal text."""
    from markupsafe import Markup

    drawn = [
        {
            "title": _FIGURE_TITLES[name],
            "caption": _FIGURE_CAPTIONS[name],
            "alt": _describe_figure(name, result.summary),
            "svg": Markup(inline_svg(name, svg)),
        }
        for name, svg in {**fleet_figures(result), **figures(result)}.items()
    ]
    # Of a fleet, what each replica differs in is in the table of replicas.
    capacity = result.summary["replicas"][0]["capacity"] if "replicas" in result.summary else result.capacity
    return render_page(
        "report.html.j2",
        title=_title(result.scenario),
        verdict=judge(result.summary, result.scenario),
        summary=summary_lines(result.summary),
        latencies=latency_rows(result.summary),
        replicas=replica_rows(result.summary),
        capacity=_capacity_lines(capacity),
        groups=_group_rows(capacity),
        measured=measured_lines(result.measured_memory),
        figures=drawn,
        scenario=[(name, _plain(value)) for name, value in _flatten(result.scenario)],
    )


def render_page(template: str, **values: Any) -> str:
    """One of `templates` with its values; a value that it does not get is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(**values)


def _find_limits(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> str | None:
    """Of a fleet: what binds at most of its replicas, if something binds anywhere."""
    if "replicas" not in summary:
        return _find_limit(summary, scenario)
    limits = [_find_limit(replica, replica["scenario"]) for replica in summary["replicas"]]
    found = Counter(limit for limit in limits if limit is not None)
    if not found:
        return None
    limit, count = found.most_common(1)[0]
    return f"At {count:,} of {len(limits):,} replicas: {limit}"


def _find_limit(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> str | None:
    settings = {name.split(".")[-1]: value for name, value in _flatten(scenario)}
    binding = binding_of(summary, settings)
    if binding == "kv_memory" and summary["preemptions"]["total"]:
        return "KV cache memory seems to bind: requests lost their blocks to others."
    if binding == "max_num_seqs":
        return f"max_num_seqs seems to bind: {settings['max_num_seqs']:,} requests ran while others waited."
    return _LIMITS[binding]


def _state_facts(summary: Mapping[str, Any]) -> str:
    requests, preemptions, usage = summary["requests"], summary["preemptions"], summary["kv_cache_usage"]
    if requests["finished"] == requests["arrived"]:
        served = (
            "the only request finished"
            if requests["arrived"] == 1
            else f"all {requests['arrived']:,} requests finished"
        )
    else:
        served = f"{requests['finished']:,} of {requests['arrived']:,} requests finished"
        lost = [f"{requests[what]:,} {what}" for what in ("rejected", "unfinished") if requests[what]]
        served += f" ({', '.join(lost)})"
    parts = [served]
    if summary["prefix_cache_hit_rate"] is not None:
        parts.append(f"{format_share(summary['prefix_cache_hit_rate'])} of prompt tokens came from the prefix cache")
    parts.append(_state_preemptions(preemptions))
    if usage["mean"] is not None:
        mean, most = format_share(usage["mean"]), format_share(usage["max"])
        parts.append(f"KV cache usage was {mean} on average and {most} at most")
    return f"{', '.join(parts[:-1])}, and {parts[-1]}."


def _state_preemptions(preemptions: Mapping[str, int]) -> str:
    total, requests = preemptions["total"], preemptions["requests"]
    if not total:
        return "none was preempted"
    were = "1 request was" if requests == 1 else f"{requests:,} requests were"
    return f"{were} preempted" if total == requests else f"{were} preempted {total:,} times in all"


def _describe_figure(name: str, summary: Mapping[str, Any]) -> str:
    """What the figure shows, for who cannot see it."""
    usage, running, waiting = summary["kv_cache_usage"], summary["running"], summary["waiting"]
    ttft, tpot = (dict(row) for _, row in latency_rows(summary)[:2])
    rates, wasted = summary["throughput"], summary["wasted_bytes"]
    shown = {
        "kv_usage": f"held blocks {format_share(usage['mean'])} of the pool on average, {format_share(usage['max'])} "
        "at most",
        "requests": f"running {format_number(running['mean'])} on average, {format_number(running['max'])} at most; "
        f"waiting {format_number(waiting['mean'])} on average, {format_number(waiting['max'])} at most",
        "latencies": f"time to first token {ttft['p50']} at the median, {ttft['p99']} at the 99th percentile; "
        f"time per output token {tpot['p50']} and {tpot['p99']}",
        "throughput": f"finished requests brought {format_number(rates['prompt_tokens_per_s'])} prompt tokens and "
        f"{format_number(rates['output_tokens_per_s'])} output tokens per second",
        "pool_bytes": f"held and needed by nobody: {format_bytes(wasted['mean'])} on average, "
        f"{format_bytes(wasted['max'])} at most",
        "replicas": f"running {format_number(running['mean'])} on average in all; hit rate "
        f"{format_share(summary['prefix_cache_hit_rate'])} in all",
    }
    return f"{_FIGURE_TITLES[name]}: {shown[name]}."


def inline_svg(name: str, svg: bytes) -> str:
    """The <svg> element alone, in the page's text colour, with ids that no other figure has."""
    text = svg.decode()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", text)
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def _capacity_lines(capacity: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("Weights", format_bytes(capacity["weight_bytes"])),
        ("Memory for KV cache", format_bytes(capacity["kv_budget_bytes"])),
        ("Pool", f"{format_bytes(capacity['pool_bytes'])} in {capacity['num_blocks']:,} blocks"),
        ("Block, over all layers of a group", format_bytes(capacity["bytes_per_block"])),
    ]
    if capacity.get("remainder_bytes"):
        lines.append(("Too little for another block", format_bytes(capacity["remainder_bytes"])))
    lines.append(("KV cache size", f"{capacity['kv_cache_tokens']:,} tokens"))
    lines.append(("Requests of the longest length", format_number(capacity["max_concurrency"])))
    return lines


def _group_rows(capacity: Mapping[str, Any]) -> list[list[str]]:
    """Kind, layers, padding layers, tokens of a block, bytes of a page."""
    return [
        [
            str(group["kind"]).replace("_", " "),
            f"{group['layers']:,}",
            f"{group['padding_layers']:,}",
            f"{group['block_size']:,}",
            format_bytes(group["page_bytes"]),
        ]
        for group in capacity["groups"]
    ]


def _title(scenario: Mapping[str, Any]) -> str:
    model, gpu, ranks = (scenario.get(key) for key in ("model", "gpu", "tensor_parallel_size"))
    title = str(model or "A run")
    if gpu:
        title += f" on {ranks} × {gpu}" if isinstance(ranks, int) and ranks > 1 else f" on {gpu}"
    if "fleet" in scenario:
        title += f", {scenario['fleet']['num_replicas']:,} replicas"
    return title


def _flatten(scenario: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every value, however deep."""
    for name, value in scenario.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)
