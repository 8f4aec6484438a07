"""Draw what differs between a fleet's replicas: their load and their hit rate over time, and what they were when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.fleet_history import num_over_time
from simulator.lives import PAID, UP, State
from simulator.metrics import Floats, over_time
from simulator.plots import (
    INK,
    LINE_COLOURS,
    FigureKind,
    edges_of,
    figures,
    finish_time_axis,
    has_replicas,
    in_unit,
    legend_above,
)
from simulator.result import Result
from simulator.table import Columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

__all__ = ["draw_replicas", "draw_states", "fleet_figures", "hit_rate_over_time"]

LOAD_BINS = 150
HIT_BINS = 60
DASHES = ("solid", "dashed")
_BLUE, _VERMILION, _, _, _ORANGE, _SKY = LINE_COLOURS
STATE_COLOURS = {State.UP: _SKY, State.BOOTING: _ORANGE, State.DRAINING: _BLUE, State.FAILED: _VERMILION}
"""Who is off leaves its place empty."""
BAR = 0.8
"""Of the space between two replicas."""


def fleet_figures(result: Result) -> dict[str, bytes]:
    """Name to SVG of each figure that only a fleet's run has."""
    return figures(
        result,
        [
            FigureKind("replicas", draw_replicas, has_replicas, 4.2),
            FigureKind("states", draw_states, _has_states, 3.6),
        ],
    )


def _has_states(result: Result) -> bool:
    return "states" in result.tables and len(result.tables["states"]["replica"]) > 0


def draw_replicas(result: Result, figure: FigureBase) -> None:
    """Running requests and prefix cache hit rate of each replica over time.

    A line for each where there are colours enough; otherwise the mean, and a band from the least to the most.
    """
    replicas = np.unique(result.steps["replica"])
    upper, lower = figure.subplots(2, 1, sharex=True)
    load_edges_s, hit_edges_s = edges_of(result, LOAD_BINS), edges_of(result, HIT_BINS)
    running = [_running(result.steps[result.steps["replica"] == number], load_edges_s) for number in replicas]
    where = "replica" if "replica" in result.requests else "prefill_replica"
    hits = [
        100 * hit_rate_over_time(result.requests[result.requests[where] == number], hit_edges_s) for number in replicas
    ]
    for axes, edges_s, lines in ((upper, load_edges_s, running), (lower, hit_edges_s, hits)):
        edges, unit = in_unit(edges_s)
        _draw_lines(axes, (edges[:-1] + edges[1:]) / 2, lines, replicas.tolist())
        axes.set_ylim(bottom=0)
    upper.set_ylabel("Running")
    lower.set_ylabel("Hit rate (%)")
    finish_time_axis(lower, edges, unit)
    legend_above(figure, upper)


def _running(steps: pd.DataFrame, edges_s: Floats) -> Floats:
    starts_s, ends_s, running = (
        steps[name].to_numpy(dtype=np.float64, copy=True) for name in ("start_s", "end_s", "running")
    )
    return over_time(starts_s, ends_s, running, edges_s).mean


def hit_rate_over_time(requests: pd.DataFrame, edges_s: Floats) -> Floats:
    """[bins] of prompt tokens that were admitted in each bin, the share that was hit; NaN where none were."""
    admitted_s = requests["first_scheduled_s"]
    prompts, cached = (
        np.histogram(admitted_s, edges_s, weights=requests[name])[0] for name in ("prompt_tokens", "cached_tokens")
    )
    shares: Floats = np.divide(cached, prompts, out=np.full(len(prompts), np.nan), where=prompts > 0)
    return shares


def _draw_lines(axes: Axes, at: Floats, lines: list[Floats], replicas: list[int]) -> None:
    styles = [(colour, dash) for dash in DASHES for colour in LINE_COLOURS]
    if len(lines) <= len(styles):
        for number, line, (colour, dash) in zip(replicas, lines, styles, strict=False):
            is_there = ~np.isnan(line)
            axes.plot(at[is_there], line[is_there], color=colour, linestyle=dash, label=f"replica {number}")
        return
    stacked = np.ma.masked_invalid(np.vstack(lines))
    low, mean, high = (reduce(axis=0).filled(np.nan) for reduce in (stacked.min, stacked.mean, stacked.max))
    axes.fill_between(at, low, high, color=LINE_COLOURS[0], alpha=0.25, linewidth=0, label="least to most")
    axes.plot(at, mean, color=LINE_COLOURS[0], label=f"mean of {len(lines)} replicas")


def draw_states(result: Result, figure: FigureBase) -> None:
    """How many replicas there were over time, and what each of them was: up, booting, draining or failed."""
    states = result.tables["states"]
    num_places = int(states["replica"].max()) + 1
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1 + num_places / 8))
    edges_s = np.array([states["start_s"].min(), states["end_s"].max()])
    edges, unit = in_unit(edges_s)
    unit_s = float((edges_s[1] - edges_s[0]) / (edges[1] - edges[0]))
    _draw_numbers(upper, states, unit_s)
    _draw_strips(lower, states, unit_s, num_places)
    finish_time_axis(lower, edges, unit)
    legend_above(figure, upper, lower)


def _draw_numbers(axes: Axes, states: Columns, unit_s: float) -> None:
    from matplotlib.ticker import MaxNLocator

    since_s, num_up = num_over_time(states, UP)
    axes.fill_between(since_s / unit_s, num_up, step="post", color=STATE_COLOURS[State.UP], linewidth=0)
    since_s, num_paid = num_over_time(states, PAID)
    axes.stairs(num_paid[:-1], since_s / unit_s, baseline=None, color=INK, linewidth=1.2, label="paid for")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("Replicas")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _draw_strips(axes: Axes, states: Columns, unit_s: float, num_places: int) -> None:
    from matplotlib.ticker import MaxNLocator

    for state, colour in STATE_COLOURS.items():
        is_so = states["state"] == state
        number, start, end = (states[name][is_so] for name in ("replica", "start_s", "end_s"))
        axes.barh(number, (end - start) / unit_s, BAR, start / unit_s, color=colour, linewidth=0, label=str(state))
    axes.set_ylim(num_places - 0.5, -0.5)
    axes.set_ylabel("Replica")
    axes.grid(visible=False, axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
