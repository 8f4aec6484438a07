"""Draw a run: each `draw_x(result, figure)` fills one figure, `figures(result)` gives all of them as SVG.

A long run is drawn in bins of time: lines and areas are time-weighted means of a bin, and a pale band
shows the least and the most in it. Equal results give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvcache.ledger import CACHED_PARTS
from simulator.metrics import Timeline, over_time, times_per_output_token_s, times_to_first_token_s
from simulator.result import Result
from simulator.summary_table import format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

__all__ = [
    "INK",
    "LINE_COLOURS",
    "FigureKind",
    "as_png",
    "as_svg",
    "draw_kv_usage",
    "draw_latencies",
    "draw_ledger",
    "draw_pool_bytes",
    "draw_requests",
    "draw_throughput",
    "edges_of",
    "figures",
    "finish_time_axis",
    "has_replicas",
    "import_matplotlib",
    "in_unit",
    "legend_above",
    "logarithmic",
]

Floats = npt.NDArray[np.float64]

INK = "#1a1d21"
"""Colour of all text and lines that are not data; a page may replace it by its own."""

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _SKY, _GREEN, _ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
_VERMILION, _PURPLE, _GREY = "#D55E00", "#CC79A7", "#999999"
LINE_COLOURS = (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY)
"""For lines side by side, in this order."""

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.axisbelow": True, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.15, "grid.linewidth": 0.5,
    "axes.titlesize": "medium", "axes.titlelocation": "left",
    "legend.frameon": False, "lines.linewidth": 1.2,
    "figure.facecolor": "none", "axes.facecolor": "none",
    "svg.fonttype": "none", "svg.hashsalt": "kvplan",
}  # fmt: skip

_BINS = 600
_RATE_BINS = 150  # prompts come in bursts: finer bins would show single steps
_CURVE_POINTS = 500
_WIDTH_INCHES = 9.6
_DOTS_PER_INCH = 110
_GIB = 2.0**30
_FEW_DECADES = 4

_POOL_PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("read or written by the step", _BLUE, ("readable", "reserved", "states")),
    ("left every window", _PURPLE, ("out_of_window",)),
    ("empty slots", _ORANGE, ("empty_slots",)),
    ("padding", _VERMILION, ("page_padding", "state_padding", "padding_layers", "unused_small_pages")),
    ("cached: free, can be hit", _SKY, CACHED_PARTS),
    ("cached, out of reach", _GREEN, ("unreachable",)),
    ("free and empty", _GREY, ("free",)),
    ("null block, remainder", INK, ("null_block", "remainder")),
)
"""Label, colour and parts of the ledger for each area, from below."""


def figures(result: Result, kinds: Sequence[FigureKind] | None = None) -> dict[str, bytes]:
    """Name to SVG of each figure for which the run has data; `kinds`: of these, not of a single server's."""
    return {
        kind.name: as_svg(partial(kind.draw, result), kind.height_inches)
        for kind in kinds or _FIGURES
        if kind.has_data(result)
    }


def draw_kv_usage(result: Result, figure: FigureBase) -> None:
    """Shares of the pool's blocks over time: held, cached but free, and empty."""
    usable_blocks = result.capacity["num_blocks"] - 1
    edges_s = edges_of(result, _BINS)
    held = _column_over_time(result.steps, "held_blocks", edges_s)
    # While nothing runs no block is held, but what is cached stays.
    cached = _column_over_time(result.steps, "cached_blocks", edges_s).mean
    busy = over_time(*_spans_s(result.steps), np.ones(len(result.steps)), edges_s).mean
    last_busy = np.maximum.accumulate(np.where(busy > 0, np.arange(len(busy)), 0))
    cached = (cached / np.where(busy > 0, busy, 1.0))[last_busy]
    free = np.maximum(0.0, usable_blocks - held.mean - cached)
    shares = 100 / usable_blocks * np.vstack([held.mean, cached, free])
    axes = figure.subplots()
    edges, unit = in_unit(edges_s)
    at = _centres(edges)
    axes.stackplot(
        at, shares, colors=(_BLUE, _SKY, _GREY), alpha=0.75, labels=("held by requests", "cached, free", "free, empty")
    )
    axes.plot(at, 100 / usable_blocks * held.high, color=INK, linewidth=0.7, label="held at most")
    axes.set_ylim(0, 100)
    axes.set_ylabel("Blocks of the pool (%)")
    finish_time_axis(axes, edges, unit)
    legend_above(figure, axes)


def draw_requests(result: Result, figure: FigureBase) -> None:
    """Running and waiting requests over time."""
    edges_s = edges_of(result, _BINS)
    edges, unit = in_unit(edges_s)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, column, colour in ((upper, "running", _BLUE), (lower, "waiting", _VERMILION)):
        _draw_band(axes, _centres(edges), _column_over_time(result.steps, column, edges_s), colour)
        axes.set_ylabel(column.capitalize())
    finish_time_axis(lower, edges, unit)


def draw_throughput(result: Result, figure: FigureBase) -> None:
    """Prompt tokens computed and tokens decoded per second, over time."""
    edges_s = edges_of(result, _RATE_BINS)
    edges, unit = in_unit(edges_s)
    steps = result.steps
    starts_s, ends_s = _spans_s(steps)
    lasted_s = ends_s - starts_s  # a plan that was empty takes no time
    decoded = _floats(steps, "num_decodes") * _floats(steps, "num_steps")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, tokens, colour, label in (
        (upper, _floats(steps, "prefill_tokens"), _ORANGE, "Prompt tokens/s"),
        (lower, decoded, _GREEN, "Decoded tokens/s"),
    ):
        rates = np.divide(tokens, lasted_s, out=np.zeros_like(tokens), where=lasted_s > 0)
        per_s = over_time(starts_s, ends_s, rates, edges_s).mean
        axes.stairs(per_s, edges, fill=True, color=colour, alpha=0.75, linewidth=0)
        axes.set_ylim(0, 1.08 * float(per_s.max()) or 1.0)
        axes.yaxis.set_major_formatter(_thousands)
        axes.set_ylabel(label)
    finish_time_axis(lower, edges, unit)


def draw_pool_bytes(result: Result, figure: FigureBase) -> None:
    """What the bytes of the pool are used for, over time; a sample stands until the next one."""
    axes = figure.subplots()
    draw_ledger(result.steps, axes, edges_of(result, _BINS))
    legend_above(figure, axes)


def draw_ledger(steps: pd.DataFrame, axes: Axes, edges_s: Floats) -> None:
    """The ledger's parts one above the other, in bins between `edges_s` [bins + 1]."""
    samples = _samples(steps)
    starts_s = _floats(samples, "start_s")
    starts_s[0] = edges_s[0]
    ends_s = np.append(starts_s[1:], edges_s[-1])
    columns = [[f"{part}_bytes" for part in parts] for _, _, parts in _POOL_PARTS]
    areas = [
        over_time(starts_s, ends_s, samples[names].sum(axis=1).to_numpy(dtype=np.float64), edges_s).mean / _GIB
        for names in columns
    ]
    edges, unit = in_unit(edges_s)
    labels, colours, _ = zip(*_POOL_PARTS, strict=True)
    axes.stackplot(_centres(edges), *areas, labels=labels, colors=colours, alpha=0.75)
    axes.set_ylim(0, np.sum(areas, axis=0).max())
    axes.set_ylabel("Pool (GiB)")
    finish_time_axis(axes, edges, unit)


def draw_latencies(result: Result, figure: FigureBase) -> None:
    """Which share of requests got their first token, and each further one, within a time."""
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_shares(left, times_to_first_token_s(result.requests), "Time to first token", _BLUE)
    _draw_shares(right, times_per_output_token_s(result.requests), "Time per output token", _GREEN)
    left.set_ylabel("Requests within the time (%)")


def _draw_shares(axes: Axes, times_s: Floats, what: str, colour: str) -> None:
    axes.set_ylim(0, 102)
    times_s = times_s[times_s > 0]  # the axis is logarithmic
    if not len(times_s):
        axes.set_title(f"{what}: no data")
        axes.set_xticks([])
        return
    shares = np.linspace(0, 100, _CURVE_POINTS)
    curve = np.percentile(times_s, shares)
    axes.plot(curve, shares, color=colour, linewidth=1.6)
    median_s, p99_s = np.percentile(times_s, (50, 99))
    axes.axvline(median_s, linestyle="--", color=INK, linewidth=1.0)
    axes.axvline(p99_s, linestyle=":", color=INK, linewidth=1.0)
    axes.set_title(f"{what}: p50 {format_seconds(median_s)} (dashed), p99 {format_seconds(p99_s)} (dotted)")
    _scale_seconds(axes, float(curve[0]), float(curve[-1]))


def _scale_seconds(axes: Axes, least_s: float, most_s: float) -> None:
    """A logarithmic axis of times, labelled 10 ms, 1 s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(least_s / 1.25, most_s * 1.25)
    decades = np.log10(most_s / least_s)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0), numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_seconds(seconds)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_band(axes: Axes, at: Floats, timeline: Timeline, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.fill_between(at, timeline.low, timeline.high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(at, timeline.mean, color=colour)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.set_ylim(0, 1.08 * float(timeline.high.max()) or 1.0)
    axes.yaxis.set_major_formatter(_thousands)


def finish_time_axis(axes: Axes, edges: Floats, unit: str) -> None:
    """End the time axis where the bins do, and name its unit."""
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel(f"Simulated time ({unit})")


def legend_above(figure: FigureBase, *parts: Axes) -> None:
    """Put the legend of these axes above the figure."""
    found = [axes.get_legend_handles_labels() for axes in parts]
    handles = [handle for each, _ in found for handle in each]
    labels = [label for _, each in found for label in each]
    figure.legend(handles, labels, loc="outside upper left", ncols=5 if len(labels) == 5 else 4, borderaxespad=0.0)


def edges_of(result: Result, num_bins: int) -> Floats:
    """[num_bins + 1] from the first arrival to the end of the last step."""
    begin_s = min(float(result.requests["arrival_s"].min()), float(result.steps["start_s"].min()))
    return np.linspace(begin_s, float(result.steps["end_s"].max()), num_bins + 1)


def in_unit(edges_s: Floats) -> tuple[Floats, str]:
    """(the same edges in a readable unit, its name)."""
    span_s = edges_s[-1] - edges_s[0]
    unit_s, unit = (3600, "hours") if span_s > 7200 else (60, "minutes") if span_s > 300 else (1, "seconds")
    return edges_s / unit_s, unit


def _centres(edges: Floats) -> Floats:
    return (edges[:-1] + edges[1:]) / 2


def _column_over_time(steps: pd.DataFrame, column: str, edges_s: Floats) -> Timeline:
    return over_time(*_spans_s(steps), _floats(steps, column), edges_s)


def _spans_s(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    return _floats(steps, "start_s"), _floats(steps, "end_s")


def _samples(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[steps["free_bytes"].notna()]


def _floats(table: pd.DataFrame, column: str) -> Floats:
    return table[column].to_numpy(dtype=np.float64, copy=True)


def _thousands(value: float, _position: float | None = None) -> str:
    """1500 as 1.5k: short enough for a tick."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that can be drawn of a run."""

    name: str
    draw: Callable[[Result, FigureBase], None]
    has_data: Callable[[Result], bool]
    height_inches: float


def has_replicas(result: Result) -> bool:
    """Whether it is the run of a fleet, and something ran."""
    return "replica" in result.steps and not result.steps.empty


def _ran(result: Result) -> bool:
    """One replica did: steps of several overlap, and are not drawn as one."""
    return not has_replicas(result) and not result.steps.empty and not result.requests.empty


def _has_blocks(result: Result) -> bool:
    return _ran(result) and result.capacity["num_blocks"] > 1


def _was_sampled(result: Result) -> bool:
    return _has_blocks(result) and not _samples(result.steps).empty


def _has_latencies(result: Result) -> bool:
    return len(times_to_first_token_s(result.requests)) > 0


_FIGURES = (
    FigureKind("kv_usage", draw_kv_usage, _has_blocks, 3.0),
    FigureKind("requests", draw_requests, _ran, 3.6),
    FigureKind("latencies", draw_latencies, _has_latencies, 3.0),
    FigureKind("throughput", draw_throughput, _ran, 3.6),
    FigureKind("pool_bytes", draw_pool_bytes, _was_sampled, 3.4),
)


def import_matplotlib() -> None:
    """So that who draws later need not wait for it."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401


def as_svg(draw: Callable[[FigureBase], None], height_inches: float) -> bytes:
    """A figure in the style of all reports; equal data give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        figure.align_ylabels()
        buffer = BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # no version, no date: equal runs, equal bytes
        figure.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


def as_png(draw: Callable[[FigureBase], None], height_inches: float) -> bytes:
    """The same on white, for where no SVG can be shown."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "figure.facecolor": "white"}):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.align_ylabels()
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def logarithmic(axes: Axes, low: float, high: float) -> None:
    """Make both axes logarithmic, with round numbers between these ends."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    factors = (1, 2, 5) if len(decades) <= _FEW_DECADES else (1,)
    ticks = [tick for decade in decades for factor in factors if low <= (tick := factor * 10.0**decade) <= high]
    for set_scale, set_ticks in ((axes.set_xscale, axes.set_xticks), (axes.set_yscale, axes.set_yticks)):
        set_scale("log")
        set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.tick_params(which="minor", bottom=False, left=False, labelbottom=False, labelleft=False)
