"""Draw the sessions of a run: how many are open, and how many requests of theirs are in flight, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.metrics import Floats, Timeline, num_at_once, over_time
from simulator.plots import LINE_COLOURS, FigureKind, edges_of, figures, finish_time_axis, in_unit, legend_above
from simulator.result import Result
from simulator.session_measures import open_at_once

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

__all__ = ["draw_sessions", "session_figures"]

BINS = 300


def session_figures(result: Result) -> dict[str, bytes]:
    """Name to SVG of each figure that only a run with sessions has."""
    return figures(result, [FigureKind("sessions", draw_sessions, _has_sessions, 2.8)])


def _has_sessions(result: Result) -> bool:
    return "sessions" in dict(result.tables) and not result.steps.empty and not result.sessions.empty


def draw_sessions(result: Result, figure: FigureBase) -> None:
    """Sessions that are open, and the requests in flight: those between the lines think, sub-agents apart."""
    edges_s = edges_of(result, BINS)
    requests = result.tables["requests"]
    has_ended = ~np.isnan(requests["finish_s"])
    in_flight = num_at_once(requests["arrival_s"][has_ended], requests["finish_s"][has_ended])
    edges, unit = in_unit(edges_s)
    axes = figure.subplots()
    at = (edges[:-1] + edges[1:]) / 2
    for label, timeline, colour in (
        ("open sessions", _over_time(*open_at_once(result.tables["sessions"]), edges_s), LINE_COLOURS[0]),
        ("requests in flight", _over_time(*in_flight, edges_s), LINE_COLOURS[1]),
    ):
        axes.fill_between(at, timeline.low, timeline.high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(at, timeline.mean, color=colour, label=label)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("At once")
    finish_time_axis(axes, edges, unit)
    legend_above(figure, axes)


def _over_time(times_s: Floats, counts: Floats, edges_s: Floats) -> Timeline:
    """Counts that hold each from its time to the next one's."""
    return over_time(times_s[:-1], times_s[1:], counts[:-1], edges_s)
