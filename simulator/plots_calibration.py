"""Draw how well a calibration does: predicted over measured times, and what is left of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.calibration import Floats, Spans
from simulator.plots import INK, LINE_COLOURS, legend_above, logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

__all__ = ["HEIGHT_INCHES", "draw_fit"]

HEIGHT_INCHES = 3.8
_MARKERS = "os^D"
_SHOWN_PCT = 30.0
"""Residuals beyond are drawn at the edge."""


def draw_fit(spans: Spans, predicted_s: Floats, figure: FigureBase) -> None:
    """Left predicted over measured, right the errors; a colour and a marker for each kind of measurement."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    kinds = np.array(spans.kinds)
    errors_pct = 100 * (predicted_s / spans.measured_s - 1)
    names = list(dict.fromkeys(spans.kinds))
    for place, name in enumerate(names):
        rows = kinds == name
        style = {"color": LINE_COLOURS[place], "marker": _MARKERS[place], "alpha": 0.55, "linewidths": 0}
        left.scatter(1e3 * spans.measured_s[rows], 1e3 * predicted_s[rows], s=14, label=name, **style)
        _draw_errors(right, place, errors_pct[rows], style)
    _finish(left, right, 1e3 * spans.measured_s, names)
    legend_above(figure, left)


def _draw_errors(axes: Axes, place: int, errors_pct: Floats, style: dict[str, object]) -> None:
    """All errors of a kind side by side, in the order of measurement, with their quartiles."""
    across = place + (np.linspace(-0.3, 0.3, len(errors_pct)) if len(errors_pct) > 1 else np.zeros(1))
    axes.scatter(across, np.clip(errors_pct, -_SHOWN_PCT, _SHOWN_PCT), s=14, **style)  # type: ignore[arg-type]
    low, middle, high = np.percentile(errors_pct, (25, 50, 75))
    axes.hlines([low, high], place - 0.34, place + 0.34, color=INK, linewidth=0.7, linestyle=(0, (3, 2)))
    axes.hlines(middle, place - 0.34, place + 0.34, color=INK, linewidth=1.4)


def _finish(left: Axes, right: Axes, measured_ms: Floats, names: list[str]) -> None:
    ends = measured_ms.min() / 1.3, measured_ms.max() * 1.3
    left.plot(ends, ends, color=INK, linewidth=0.8, zorder=0)
    logarithmic(left, *ends)
    left.set_xlabel("Measured (ms)")
    left.set_ylabel("Predicted (ms)")
    right.axhline(0, color=INK, linewidth=0.8, zorder=0)
    right.set_xticks(range(len(names)), names)
    right.set_xlim(-0.6, len(names) - 0.4)
    right.grid(axis="x", visible=False)
    right.set_ylabel("Error of the prediction (%)")
    right.set_title("median, quartiles; each kind in the order of measurement", fontsize="small")
