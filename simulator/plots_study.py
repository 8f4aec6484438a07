"""Draw a study of groupings: where the pool's bytes are over time, one panel a run, and what is wasted by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from kvcache.ledger import WASTED_PARTS
from simulator.grouping_study import GroupingStudy, Replay
from simulator.plots import draw_ledger
from simulator.summary_table import format_share

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

__all__ = ["bars_inches", "draw_causes", "draw_ledgers", "ledgers_inches"]

_BINS = 300
_COLUMNS = 2
_GIB = 2.0**30
# Okabe and Ito's colours, which colour-blind readers can tell apart.
_COLOURS = {
    "out_of_window": "#CC79A7",
    "empty_slots": "#E69F00",
    "page_padding": "#F0E442",
    "state_padding": "#56B4E9",
    "padding_layers": "#D55E00",
    "unused_small_pages": "#009E73",
}


def ledgers_inches(study: GroupingStudy) -> float:
    """How high the small multiples are."""
    return 0.9 + 2.0 * -(-len(study.runs) // _COLUMNS)


def draw_ledgers(study: GroupingStudy, figure: FigureBase) -> None:
    """The memory ledger over time, a panel for each run, all with one scale of time and of bytes."""
    runs = {name: run for name, run in study.runs.items() if len(run.samples["start_s"])}
    begin_s, end_s = min(run.begin_s for run in runs.values()), max(run.end_s for run in runs.values())
    edges_s = np.linspace(begin_s, end_s, _BINS + 1)
    num_rows = -(-len(runs) // _COLUMNS)
    panels = figure.subplots(num_rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
    twins = study.twins
    for axes, (name, run) in zip(panels, runs.items(), strict=False):
        draw_ledger(_until_the_end(run), axes, edges_s)
        axes.set_title(", ".join([name, *twins.get(name, [])]), fontsize="small")
        axes.set_ylim(0, run.budget_bytes / _GIB)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)
    for nth, axes in enumerate(panels[: len(runs)]):
        is_lowest = nth + _COLUMNS >= len(runs)
        axes.tick_params(labelbottom=is_lowest)
        if not is_lowest:
            axes.set_xlabel("")
        if nth % _COLUMNS:
            axes.set_ylabel("")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, borderaxespad=0.0)


def _until_the_end(run: Replay) -> pd.DataFrame:
    """The samples, and nothing from the end of the run on."""
    samples = pd.DataFrame({name: np.append(values, 0.0) for name, values in run.samples.items()})
    samples.loc[len(samples) - 1, "start_s"] = run.end_s
    return samples


def bars_inches(study: GroupingStudy) -> float:
    """How high the bars are together."""
    return 1.2 + 0.34 * len(study.runs)


def draw_causes(study: GroupingStudy, figure: FigureBase) -> None:
    """A bar for each run: bytes that requests hold and nobody needs, by cause, the mean over the samples."""
    axes = figure.subplots()
    names = list(study.runs)
    ledgers = {name: run.ledger for name, run in study.runs.items()}
    places = np.arange(len(names))
    left = np.zeros(len(names))
    for cause in WASTED_PARTS:
        wasted = np.array([ledgers[name].get(cause, 0) for name in names]) / _GIB
        if wasted.any():
            axes.barh(places, wasted, left=left, height=0.62, color=_COLOURS[cause], label=cause.replace("_", " "))
            left += wasted
    for place, name in enumerate(names):
        text = f"{left[place]:.2f} GiB, {format_share(study.runs[name].wasted_share)} of what is held"
        axes.annotate(
            text, (left[place], place), xytext=(5, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.45 * float(left.max()) or 1.0)
    axes.set_xlabel("Held and needed by nobody (GiB, mean)")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=6, borderaxespad=0.0)
