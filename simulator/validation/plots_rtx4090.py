"""Draw the RTX 4090's run over time, measured and predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.plots import INK, LINE_COLOURS, legend_above
from simulator.validation.rtx4090 import Validation

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

__all__ = ["HEIGHT_INCHES", "draw_series"]

HEIGHT_INCHES = 4.2


def draw_series(validation: Validation, figure: FigureBase) -> None:
    """Running requests and KV cache usage: the server's log over the replay's steps."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    for series, label, colour, width in (
        (validation.predicted, "predicted, every step", LINE_COLOURS[1], 0.9),
        (validation.measured, "measured, every second", INK, 1.2),
    ):
        style = (0, (4, 2)) if colour == INK else "-"
        upper.step(series.time_s, series.running, where="post", color=colour, lw=width, ls=style, label=label)
        lower.step(series.time_s, 100 * series.kv_usage, where="post", color=colour, lw=width, ls=style)
    upper.set_ylabel("Running requests")
    lower.set_ylabel("KV cache usage (%)")
    lower.set_xlabel("Time from the first arrival (s)")
    upper.set_ylim(bottom=0)
    lower.set_ylim(0, 105)
    lower.set_xlim(0, float(np.max(validation.measured.time_s)))
    legend_above(figure, upper)
