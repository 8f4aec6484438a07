"""Draw what `workloads.describe` found in a trace: arrivals, lengths, and what a cache could save."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workloads import Histogram, LengthStats, TraceDescription

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _ORANGE, _GREEN = "#0072B2", "#E69F00", "#009E73"
_GREY = "#BBBBBB"
_SIZE_INCHES = (11.0, 7.0)
_DOTS_PER_INCH = 130
_MINUTES_FROM_S = 600  # a longer trace is labelled in minutes
_LOWEST_COUNT = 0.7  # where logarithmic bars begin: one request is still to be seen
_FEW_DECADES = 2.5  # an axis that covers fewer is labelled at 1, 2 and 5


def draw_trace(description: TraceDescription, path: str | Path) -> None:
    """Write a PNG of four panels to `path`: arrivals and hit potential over time, prompt and output lengths."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=_SIZE_INCHES, layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06))
    FigureCanvasAgg(figure)
    (arrivals, prompts), (hits, outputs) = figure.subplots(2, 2)
    hits.sharex(arrivals)
    figure.suptitle(
        f"{description.name}: {description.num_requests:,} requests in {_duration(description.span_s)}, "
        f"{description.prompt_tokens_total:,} prompt tokens"
    )
    _draw_arrivals(arrivals, description)
    _draw_hits(hits, description)
    _draw_lengths(prompts, description.prompt_histogram, description.prompt, "Prompt", _BLUE)
    _draw_lengths(outputs, description.output_histogram, description.output, "Output", _GREEN)
    for axes in (arrivals, prompts, hits, outputs):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)


def _draw_arrivals(axes: Axes, description: TraceDescription) -> None:
    rates_per_s = description.arrivals_per_interval / description.interval_s
    edges, unit = _time_edges(description)
    axes.stairs(rates_per_s, edges, fill=True, color=_BLUE)
    axes.axhline(description.rate_per_s, color=_ORANGE, linewidth=1.5, label=f"mean {description.rate_per_s:.3g}")
    burstiness = f"coefficient of variation of gaps {description.interarrival_cv:.2f}"
    axes.set_title(f"Arrivals per {description.interval_s:g} s ({burstiness})", fontsize="medium")
    axes.set_ylabel("Requests per second")
    axes.set_xlabel(f"Time from the trace's start ({unit})")
    # Room above the bars, so that the legend covers none.
    axes.set_ylim(0, 1.25 * max(float(rates_per_s.max()), description.rate_per_s))
    axes.legend(loc="upper right", frameon=False)


def _draw_hits(axes: Axes, description: TraceDescription) -> None:
    edges, unit = _time_edges(description)
    axes.set_xlabel(f"Time from the trace's start ({unit})")
    axes.set_ylabel("Prompt tokens per second")
    tokens_per_s = description.prompt_tokens_per_interval / description.interval_s
    axes.stairs(tokens_per_s, edges, fill=True, color=_GREY, label="prompt tokens")
    axes.set_ylim(0, 1.3 * float(tokens_per_s.max()) or 1.0)
    if description.ideal_hit_ratio is None:
        title = "Hit potential: unknown, the trace has no prefix ids"
    else:
        hits_per_s = description.hit_tokens_per_interval / description.interval_s
        axes.stairs(hits_per_s, edges, fill=True, color=_ORANGE, label="of these, seen before")
        title = f"Hit potential: {description.ideal_hit_ratio:.1%} of prompt tokens with an endless cache"
    axes.set_title(title, fontsize="medium")
    axes.yaxis.set_major_formatter(_thousands)
    axes.legend(loc="upper right", frameon=False, ncols=2)


def _draw_lengths(axes: Axes, histogram: Histogram, stats: LengthStats, what: str, colour: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.stairs(histogram.counts, histogram.edges, fill=True, color=colour)
    top = float(max(1, histogram.counts.max()))
    for value, style, name in ((stats.p50, "-", "p50"), (stats.p90, "--", "p90"), (stats.p99, ":", "p99")):
        at, ends = max(1.0, value), (_LOWEST_COUNT, 1.5 * top)
        axes.plot((at, at), ends, style, color="black", linewidth=1.3, label=f"{name} {value:,.0f}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    # The legend stands above bars and lines.
    axes.set_ylim(_LOWEST_COUNT, top * (top / _LOWEST_COUNT) ** 0.2 * 2)
    decades = np.log10(histogram.edges[-1] / histogram.edges[0])
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < _FEW_DECADES else (1,), numticks=99))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_thousands)
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{what} lengths (mean {stats.mean:,.0f}, longest {stats.max:,})", fontsize="medium")
    axes.set_xlabel(f"{what} tokens")
    axes.set_ylabel("Requests")
    axes.legend(loc="upper left", frameon=False, ncols=3)


def _time_edges(description: TraceDescription) -> tuple[npt.NDArray[np.float64], str]:
    """Where the intervals begin and end, and in which unit."""
    unit_s, unit = (60.0, "minutes") if description.span_s > _MINUTES_FROM_S else (1.0, "seconds")
    num_edges = len(description.arrivals_per_interval) + 1
    return np.linspace(0.0, (num_edges - 1) * description.interval_s / unit_s, num_edges), unit


def _duration(span_s: float) -> str:
    return f"{span_s / 60:,.0f} min" if span_s > _MINUTES_FROM_S else f"{span_s:,.3g} s"


def _thousands(value: float, _position: float | None = None) -> str:
    """1500 as 1.5k, 2e6 as 2M: short enough for a tick."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
