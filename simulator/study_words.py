"""A study of groupings in words: a table of the runs, which grouping serves the trace best, and what that costs."""

from collections.abc import Iterator

from rich.table import Table

from kvcache.ledger import NEEDED_PARTS, WASTED_PARTS
from simulator.grouping_study import GroupingStudy, Replay
from simulator.report import judge
from simulator.static_waste import PUBLISHED
from simulator.summary_table import format_number, format_seconds, format_share, listed

__all__ = ["COLUMNS", "cells", "remarks", "study_table", "verdict"]

COLUMNS = (
    "Groups", "Wasted mean", "Wasted max", "Prefix hits", "Pre- empted", "Running mean", "Running max", "Out/s",
    "TTFT p50 s", "TTFT p99 s", "Re- jected",
)  # fmt: skip
"""Beside the grouping's name, each to be broken at its first space; shares wasted are of what requests hold."""
_ALIKE = 0.01
"""Relative difference from which two groupings are said to differ."""
_AS_MANY = 0.0005
"""Relative difference that rounds to nothing."""
_FEW_SAMPLES = 50
_SAME_WASTE = 0.005
"""Difference of wasted shares below which they are said to be the same."""
_SAME_HITS = 0.001
"""Difference of hit rates below which they are said to be the same."""


def study_table(study: GroupingStudy) -> Table:
    """A row for each different run; what was rejected is left out where that is nothing."""
    rows = {name: cells(run) for name, run in study.runs.items()}
    num_columns = len(COLUMNS) if any(row[-1] != "0" for row in rows.values()) else len(COLUMNS) - 1
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Grouping", no_wrap=True)
    for heading in COLUMNS[:num_columns]:
        first, _, second = heading.partition(" ")
        table.add_column(f"{first}\n{second}", justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(name, *row[:num_columns])
    return table


def cells(run: Replay) -> list[str]:
    """One for each of COLUMNS."""
    summary = run.summary
    return [
        f"{len(run.capacity['groups'])}",
        format_share(run.wasted_share),
        format_share(run.wasted_share_at_most),
        format_share(summary["prefix_cache_hit_rate"]),
        f"{summary['preemptions']['total']:,}",
        format_number(summary["running"]["mean"]),
        format_number(summary["running"]["max"]),
        format_number(summary["throughput"]["output_tokens_per_s"]),
        format_number(summary["ttft_s"]["p50"]),
        format_number(summary["ttft_s"]["p99"]),
        f"{summary['requests']['rejected']:,}",
    ]


def remarks(study: GroupingStudy) -> Iterator[str]:
    """What the table leaves out: policies that do the same, and those without a run."""
    for name, twins in study.twins.items():
        if name in study.runs:
            yield f"{listed(twins)}: the same server as {name}"
    for name, reason in study.refused.items():
        yield f"{name}: no run, {reason}"


def verdict(study: GroupingStudy, threshold_pct: float) -> Iterator[str]:
    """Which grouping serves the trace best, what binds, what padding does, what less waste costs, how sure it is."""
    runs = study.runs
    base = PUBLISHED if PUBLISHED in runs else next(iter(runs))
    if len(runs) > 1:
        yield _best_in_words(runs, base)
    yield f"Under {base}: {judge(runs[base].summary, runs[base].scenario).text}"
    yield _padding_in_words(runs, base, threshold_pct)
    least = min(runs, key=lambda name: _wasted_rank(runs[name]))
    if runs[least].wasted_share < runs[base].wasted_share - _SAME_WASTE:
        yield _trade_in_words(least, base, runs)
    else:
        yield f"No grouping wastes noticeably less than {base}: {_wasted_in_words(runs[base])} of held bytes."
    fewest = min(len(run.samples["start_s"]) for run in runs.values())
    if fewest < _FEW_SAMPLES:
        yield f"Wasted bytes are sampled, here at {fewest} moments of a run: take differences of a percent with care."


def _best_in_words(runs: dict[str, Replay], base: str) -> str:
    ranked = sorted(runs, key=lambda name: _merit(runs[name]), reverse=True)
    best, gain = ranked[0], _gain(runs[ranked[0]], runs[base])
    if best == base:
        others = ", ".join(f"{name} {_change(_gain(runs[name], runs[base]))}" for name in ranked[1:])
        return f"{base} serves this trace best: {_rate(runs[base])} output tokens per second; {others}."
    if gain < _ALIKE and _finished(runs[best]) == _finished(runs[base]):
        return (
            f"No grouping serves this trace better than {base} by {_ALIKE:.0%} or more: {best} comes first with"
            f" {_rate(runs[best])} output tokens per second ({_change(gain)}){_running(runs[best], runs[base])}."
        )
    more = f", {_finished(runs[best]):,} requests instead of {_finished(runs[base]):,}"
    return (
        f"{best} serves this trace best: {_rate(runs[best])} output tokens per second, {_change(gain)} against"
        f" {base}{more if _finished(runs[best]) != _finished(runs[base]) else ''};"
        f" TTFT p50 {format_seconds(runs[best].summary['ttft_s']['p50'])} instead of"
        f" {format_seconds(runs[base].summary['ttft_s']['p50'])}{_running(runs[best], runs[base])}."
    )


def _padding_in_words(runs: dict[str, Replay], base: str, threshold_pct: float) -> str:
    share = runs[base].padding_share
    if 100 * share <= threshold_pct:
        return (
            f"Padding under {base} is acceptable: {format_share(share)} of what requests hold, the threshold is"
            f" {threshold_pct:g}%."
        )
    worse = f"Padding under {base} is unacceptable: {format_share(share)} of what requests hold, more than"
    fixing = [
        name
        for name, run in runs.items()
        if 100 * run.padding_share <= threshold_pct and run.wasted_share <= runs[base].wasted_share
    ]
    if not fixing:
        return f"{worse} {threshold_pct:g}%; no grouping that wastes as little fixes it."
    best = max(fixing, key=lambda name: _merit(runs[name]))
    return (
        f"{worse} {threshold_pct:g}%; {best} fixes it: {format_share(runs[best].padding_share)},"
        f" {_output_in_words(_gain(runs[best], runs[base]))}."
    )


def _trade_in_words(least: str, base: str, runs: dict[str, Replay]) -> str:
    run, other = runs[least], runs[base]
    hits, hits_before = (each.summary["prefix_cache_hit_rate"] or 0.0 for each in (run, other))
    facts = f"{least} wastes least: {format_share(run.wasted_share)} of held bytes, {base} {_wasted_in_words(other)}"
    rates = f"{format_share(hits)} of prompt tokens, {base} {format_share(hits_before)}"
    if hits < hits_before - _SAME_HITS:
        return f"{facts}. It pays with prefix hits: {rates}; {_output_in_words(_gain(run, other))}."
    if hits > hits_before + _SAME_HITS:
        return f"{facts}. It hits more, too: {rates}."
    return f"{facts}. It loses no prefix hits: {rates}."


def _wasted_in_words(run: Replay) -> str:
    """The share, and the cause that has most of it."""
    ledger = run.ledger
    cause = max(WASTED_PARTS, key=lambda part: ledger.get(part, 0))
    share = ledger.get(cause, 0) / max(1, sum(ledger.get(part, 0) for part in (*WASTED_PARTS, *NEEDED_PARTS)))
    return f"{format_share(run.wasted_share)} (most of it {cause.replace('_', ' ')}, {format_share(share)})"


def _running(run: Replay, base: Replay) -> str:
    """How many requests it runs at a time and how often it preempts, where that differs."""
    mean, before = (each.summary["running"]["mean"] or 0.0 for each in (run, base))
    facts = ""
    if abs(mean - before) >= _ALIKE * before:
        facts += f"; {format_number(mean)} requests run at a time instead of {format_number(before)}"
    preemptions, others = (each.summary["preemptions"]["total"] for each in (run, base))
    if preemptions != others:
        facts += f"; {preemptions:,} preemption{'s' * (preemptions != 1)} instead of {others:,}"
    return facts


def _wasted_rank(run: Replay) -> tuple[float, int]:
    return run.wasted_share, len(run.capacity["groups"])


def _merit(run: Replay) -> tuple[int, float, int]:
    """The more the better: finished requests, output tokens per second; of equals, the one with fewer groups."""
    rate = float(run.summary["throughput"]["output_tokens_per_s"] or 0.0)
    return _finished(run), rate, -len(run.capacity["groups"])


def _finished(run: Replay) -> int:
    return int(run.summary["requests"]["finished"])


def _gain(run: Replay, base: Replay) -> float:
    """Relative difference of output tokens per second."""
    before = _merit(base)[1]
    return _merit(run)[1] / before - 1 if before else 0.0


def _change(gain: float) -> str:
    return f"{gain:+.1%}".replace("-", "−")


def _output_in_words(gain: float) -> str:
    return f"{'as many' if abs(gain) < _AS_MANY else _change(gain)} output tokens per second"


def _rate(run: Replay) -> str:
    return format_number(_merit(run)[1])
