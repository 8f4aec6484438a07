"""Draw the published sample: predicted over measured, a dot for each row, and what is left by concurrency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.plots import INK, LINE_COLOURS, legend_above, logarithmic

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

__all__ = ["HEIGHT_INCHES", "draw_errors", "draw_sample"]

HEIGHT_INCHES = 3.9
MARKERS = "os^DvP"
MEASURES = (("tpot", "TPOT"), ("ttft", "TTFT"))
SOME = 5
"""Rows that are worth a box."""
SHOWN = 1.0
"""Errors beyond are drawn at the edge."""


def _families(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by model, whatever the format of its weights."""
    names = table["model"].str.replace(r"(-fp8|-nvfp4)$", "", regex=True)
    return {str(name): rows for name, rows in table.groupby(names, sort=True)}


def draw_sample(table: pd.DataFrame, figure: FigureBase) -> None:
    """TPOT and TTFT, predicted over measured; lines at 0, and at 20 % to both sides."""
    panels = figure.subplots(1, 2)
    for axes, (measure, name) in zip(panels, MEASURES, strict=True):
        for place, (model, rows) in enumerate(_families(table).items()):
            round_, colour = divmod(place, len(LINE_COLOURS))
            axes.scatter(
                1e3 * rows[f"measured_{measure}_s"], 1e3 * rows[f"predicted_{measure}_s"], s=16, label=model,
                color=LINE_COLOURS[colour], marker=MARKERS[(colour + round_) % len(MARKERS)], alpha=0.6, linewidths=0,
            )  # fmt: skip
        values = 1e3 * np.concatenate([table[f"{kind}_{measure}_s"] for kind in ("measured", "predicted")])
        _diagonal(axes, values.min() / 1.2, values.max() * 1.2)
        axes.set_xlabel(f"Measured {name} (ms)")
        axes.set_ylabel(f"Predicted {name} (ms)")
    legend_above(figure, panels[0])


def _diagonal(axes: Axes, low: float, high: float) -> None:
    ends = np.array([low, high])
    axes.plot(ends, ends, color=INK, linewidth=0.8, zorder=0)
    for factor in (0.8, 1.2):
        axes.plot(ends, factor * ends, color=INK, linewidth=0.6, linestyle=(0, (3, 3)), zorder=0)
    logarithmic(axes, low, high)
    axes.set(xlim=ends, ylim=ends)


def draw_errors(table: pd.DataFrame, figure: FigureBase) -> None:
    """Errors by requests in flight: a box from quartile to quartile, whiskers to the tenth and the ninetieth part."""
    panels = figure.subplots(1, 2, sharey=True)
    levels = sorted(table["concurrency"].unique())
    shown = [level for level in levels if (table["concurrency"] == level).sum() >= SOME] or levels
    for axes, (measure, name), colour in zip(panels, MEASURES, LINE_COLOURS, strict=False):
        errors = [table.loc[table["concurrency"] == level, f"{measure}_error"].to_numpy() for level in shown]
        boxes = axes.boxplot(
            [100 * np.clip(each, -SHOWN, SHOWN) for each in errors], whis=(10, 90), showfliers=False, patch_artist=True,
            medianprops={"color": INK}, tick_labels=[f"{level:,}" for level in shown],
        )  # fmt: skip
        for box in boxes["boxes"]:
            box.set(facecolor=colour, alpha=0.35)
        axes.axhline(0, color=INK, linewidth=0.8, zorder=0)
        axes.set_xlabel("Requests in flight")
        axes.set_title(name, fontsize="medium")
    panels[0].set_ylabel("Error of the prediction (%)")
