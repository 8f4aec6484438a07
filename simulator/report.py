"""Report a run as one HTML file that needs nothing else: what happened, in words, tables and figures."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulator.binding import Binding, binding_of
from simulator.measured_memory import measured_lines
from simulator.plots import INK, figures
from simulator.plots_disaggregation import disaggregation_figures
from simulator.plots_fleet import fleet_figures
from simulator.plots_sessions import session_figures
from simulator.result import Result
from simulator.run_folder import write_whole
from simulator.summary_table import (
    flatten,
    format_bytes,
    format_number,
    format_share,
    latency_rows,
    list_reasons,
    replica_rows,
    summary_lines,
    transfer_lines,
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
    "states": "Replicas that were up, and what each was when",
    "sessions": "Sessions",
    "stages": "Where the time to the first token goes",
}
_FIGURE_CAPTIONS = {
    "kv_usage": "Blocks that requests hold, and above them free blocks whose content can still be hit.",
    "requests": "The line is the mean over time, the band reaches from the least to the most.",
    "latencies": "How many requests got their first token, and each further one on average, within a time.",
    "throughput": "Prompt tokens computed, without those found in the prefix cache, and tokens decoded.",
    "pool_bytes": "Sampled; what left every window, empty slots and padding are held, and nobody needs them.",
    "stages": "Requests in tenths from the fastest to the slowest; where they wait for others is hatched.",
    "replicas": "Running requests, and of the prompt tokens admitted the share that came from the prefix cache.",
    "states": "Who boots or drains is paid for, but takes no requests; who is off is not wanted.",
    "sessions": "The sessions that have no request in flight think; a band reaches from the least to the most.",
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
    are named, and no sign of strain; requests that were lost with a replica are one.
    """
    requests, limit = summary["requests"], _find_limits(summary, scenario)
    if not requests["arrived"]:
        return Verdict("held", "Nothing to do", "no request arrived.", "Nothing seems to bind.")
    facts = _state_facts(summary)
    ends = [f"{end.capitalize()}: {list_reasons(requests, end)}." for end in ("rejected", "lost") if requests.get(end)]
    no_limit = " ".join([*ends, "Nothing else seems to bind." if ends else "Nothing seems to bind."])
    if requests["unfinished"] or not requests["finished"]:
        return Verdict("failed", "It did not hold", facts, limit or no_limit)
    if requests.get("lost"):
        return Verdict("strained", "It held, but lost requests", facts, f"{ends[-1]} {limit}" if limit else no_limit)
    if limit:
        return Verdict("strained", "It held under strain", facts, limit)
    return Verdict("held", "It held, rejections apart" if requests["rejected"] else "It held", facts, no_limit)


def write_report(result: Result, path: str | Path) -> None:
    """Write the report to `path`; a reader never sees half of it."""
    write_whole(Path(path), lambda file: file.write_text(render_report(result), encoding="utf-8"))


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
        for name, svg in _all_figures(result).items()
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
        scenario=[(name, _plain(value)) for name, value in flatten(result.scenario)],
    )


def _all_figures(result: Result) -> dict[str, bytes]:
    return {
        **disaggregation_figures(result), **fleet_figures(result), **session_figures(result), **figures(result),
    }  # fmt: skip


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
    settings = {name.split(".")[-1]: value for name, value in flatten(scenario)}
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
        lost = [f"{requests[what]:,} {what}" for what in ("rejected", "lost", "unfinished") if requests.get(what)]
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
        "states": f"replicas up {_up_on_average(summary)}",
        "stages": "; ".join(f"{name} {value}" for name, value in transfer_lines(summary)[-1:]),
        "replicas": f"running {format_number(running['mean'])} on average in all; hit rate "
        f"{format_share(summary['prefix_cache_hit_rate'])} in all",
        "sessions": _describe_sessions(summary.get("sessions")),
    }
    return f"{_FIGURE_TITLES[name]}: {shown[name]}."


def _up_on_average(summary: Mapping[str, Any]) -> str:
    up = summary["operations"]["replicas_up"] if "operations" in summary else {"mean": None, "max": None}
    return f"{format_number(up['mean'])} on average, {format_number(up['max'])} at most"


def _describe_sessions(sessions: Mapping[str, Any] | None) -> str:
    if sessions is None:
        return "none"
    at_once = sessions["at_once"]
    return f"{format_number(at_once['mean'])} open on average, {format_number(at_once['max'])} at most"


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
