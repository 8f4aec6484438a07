"""Draw a study: a panel for each measure over what varies, and which points trade cost against latency best."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simulator.measures import Measure, format_dollars
from simulator.plots import INK, LINE_COLOURS
from simulator.study_effects import cost_measure, front, measure_named
from simulator.study_settings import named, shown
from simulator.study_table import Row, StudyTable
from simulator.summary_table import format_number, format_seconds, format_share
from simulator.toml_file import is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase
    from matplotlib.lines import Line2D
    from matplotlib.ticker import Formatter

__all__ = ["draw_fronts", "draw_measures", "fronts_inches", "has_front", "measures_inches"]

_COLUMNS = 3
_PANELS = ("output_tokens_per_s", "ttft_p99_s", "tpot_p99_s", "prefix_cache_hit_rate", "kv_cache_usage_mean")
_MARKERS = "osD^vPX*"
_DASHES: tuple[Literal["solid", "dashed", "dotted", "dashdot"], ...] = ("solid", "dashed", "dotted", "dashdot")
_LOG_FROM = 12
"""Ratio of largest to smallest from which a measure's axis is logarithmic ..."""
_LOG_STEPS_FROM = 8
"""... and that of a setting."""
_DECADES_FROM = 100
"""Ratio from which only powers of ten are labelled."""
_LEGEND_CHARACTERS, _PANEL_CHARACTERS = 130, 36
"""About as many fit beside each other, above a figure and below a panel."""
_NAMED = 12
"""Points of a front that are told apart by a letter."""
_LISTED = 40
"""Points of a list that are named one below the other."""
_GREY = "#999999"
_SLO_LINE: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 3)), "linewidth": 0.9}


# Small multiples.


@dataclass(frozen=True)
class _Roles:
    """Which axis is drawn how; None: there is none such."""

    along: str
    colour: str | None
    marker: str | None
    others: tuple[str, ...]

    @classmethod
    def of(cls, table: StudyTable) -> _Roles:
        """Along the horizontal axis a number, if one varies; colour and marker for the next two with most values."""
        axes = table.study.axes
        by_size = sorted(axes, key=lambda name: -len(axes[name]))
        numbers = [name for name in by_size if _is_numeric(axes[name])]
        along = (numbers or by_size)[0]
        rest = [name for name in by_size if name != along]
        colour, marker = rest[0] if rest else None, rest[1] if len(rest) > 1 else None
        return cls(along, colour, marker, tuple(rest[2:]))


def measures_inches(table: StudyTable) -> float:
    """How high the small multiples are."""
    num_rows = -(-len(_measures(table)) // _COLUMNS)
    if _is_listed(table):
        return 0.7 + num_rows * (0.9 + 0.2 * min(len(table.rows), _LISTED))
    return 0.7 + 2.3 * num_rows


def draw_measures(table: StudyTable, figure: FigureBase) -> None:
    """A panel for each measure: over a number as lines, over names as dots; below, a cross where a point has none."""
    measures = _measures(table)
    num_rows = -(-len(measures) // _COLUMNS)
    panels = figure.subplots(num_rows, min(_COLUMNS, len(measures)), squeeze=False, sharey=_is_listed(table)).ravel()
    for panel in panels[len(measures) :]:
        panel.set_visible(False)
    if _is_listed(table):
        for panel, measure in zip(panels, measures, strict=False):
            _draw_list(panel, table, measure)
        return
    roles = _Roles.of(table)
    for panel, measure in zip(panels, measures, strict=False):
        _draw_grid(panel, table, measure, roles)
        panel.set_xlabel(roles.along)
    handles = _handles(table, roles)
    if handles:
        widest = max(len(str(handle.get_label())) for handle in handles)
        ncols = max(1, min(len(handles), _LEGEND_CHARACTERS // (widest + 6)))
        figure.legend(handles=handles, loc="outside upper left", ncols=ncols, borderaxespad=0.0)


def _handles(table: StudyTable, roles: _Roles) -> list[Line2D]:
    """What colours mean, what markers mean, and what a cross does."""
    from matplotlib.lines import Line2D

    axes = table.study.axes
    handles = []
    if roles.colour is not None:
        for nth, value in enumerate(axes[roles.colour]):
            colour = _colours(len(axes[roles.colour]))[nth]
            handles.append(Line2D([], [], color=colour, marker="o", label=_short(named(roles.colour, value))))
    if roles.marker is not None:
        for nth, value in enumerate(axes[roles.marker]):
            marker, dashes = _MARKERS[nth % len(_MARKERS)], _DASHES[nth % len(_DASHES)]
            label = _short(named(roles.marker, value))
            handles.append(Line2D([], [], color=INK, marker=marker, linestyle=dashes, label=label))
    if any(measure.column in table.study.slo for measure in _measures(table)):
        handles.append(Line2D([], [], **_SLO_LINE, label="at most, by the SLO"))
    if table.unfinished:
        handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="refused or failed"))
    return handles


def _measures(table: StudyTable) -> list[Measure]:
    """Those of which at least one point has a value, cost included."""
    measures = [*map(measure_named, _PANELS)]
    measures.insert(3, cost_measure(table))
    return [
        measure for measure in measures if any(row.measures.get(measure.column) is not None for row in table.finished)
    ]


def _is_listed(table: StudyTable) -> bool:
    """Points one below the other: they are no grid, or nothing varies."""
    return not table.study.is_grid or not table.study.axes


def _draw_grid(panel: Axes, table: StudyTable, measure: Measure, roles: _Roles) -> None:
    axes = table.study.axes
    series = _series(table.rows, roles)
    is_numeric = _is_numeric(axes[roles.along])
    places = {shown(value): float(value) if is_numeric else nth for nth, value in enumerate(axes[roles.along])}
    for nth, rows in enumerate(series):
        dodge = 0.0 if is_numeric else 0.5 * ((nth + 0.5) / len(series) - 0.5)
        at = [places[shown(row.settings[roles.along])] + dodge for row in rows]
        values = [math.nan if (value := row.measures.get(measure.column)) is None else value for row in rows]
        style = _style(rows[0], roles, axes)
        panel.plot(at, values, **style, linewidth=1.2 if is_numeric else 0.0, markersize=4.0)
        lost = [place for place, row in zip(at, rows, strict=True) if not row.has_finished]
        if lost:
            (cross,) = panel.plot(lost, [0.0] * len(lost), "x", color=style["color"], markersize=5.0, clip_on=False)
            cross.set_transform(panel.get_xaxis_transform())
            cross.set_in_layout(False)
    is_log = is_numeric and _is_wide(places.values(), _LOG_STEPS_FROM)
    if is_log:
        panel.set_xscale("log")
    ticks = [_tick(text) for text in places]
    if is_numeric:
        ticks = _with_room(ticks, [math.log(place) if is_log else place for place in places.values()])
    is_crowded = not is_numeric and sum(map(len, ticks)) + 2 * len(ticks) > _PANEL_CHARACTERS
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
    panel.set_xticks(list(places.values()), ticks, **turned)
    panel.set_xticks([], minor=True)
    if not is_numeric:
        panel.set_xlim(-0.6, len(places) - 0.4)
    panel.set_title(measure.title, fontsize="small")
    _scale(panel, "y", measure, table.finished)
    _draw_bound(panel, measure, table)


def _with_room(ticks: Sequence[str], places: Sequence[float]) -> list[str]:
    """Labels of numbers along an axis, empty where the one before is too near."""
    span = max(places) - min(places)
    labels, room_from = [""] * len(ticks), -math.inf
    for nth in sorted(range(len(ticks)), key=lambda nth: places[nth]):
        if places[nth] >= room_from:
            labels[nth] = ticks[nth]
            room_from = places[nth] + span * (len(ticks[nth]) + 2) / _PANEL_CHARACTERS
    return labels


def _series(rows: Sequence[Row], roles: _Roles) -> list[list[Row]]:
    """Rows that differ along the horizontal axis only, in the order of that axis."""
    series: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        series[tuple(shown(value) for name, value in row.settings.items() if name != roles.along)].append(row)
    if all(_is_numeric([row.settings[roles.along]]) for row in rows):
        return [sorted(each, key=lambda row: float(row.settings[roles.along])) for each in series.values()]
    return list(series.values())


def _style(row: Row, roles: _Roles, axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    colour, marker = (
        0 if name is None else [shown(value) for value in axes[name]].index(shown(row.settings[name]))
        for name in (roles.colour, roles.marker)
    )
    return {
        "color": _colours(1 if roles.colour is None else len(axes[roles.colour]))[colour],
        "marker": _MARKERS[marker % len(_MARKERS)],
        "linestyle": _DASHES[marker % len(_DASHES)],
        "alpha": 0.6 if roles.others else 1.0,
    }


def _colours(count: int) -> Sequence[str]:
    """So many, which colour-blind readers can tell apart: distinct ones, or a scale where there are too many."""
    if count <= len(LINE_COLOURS):
        return LINE_COLOURS
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0.0, 0.92, count))]


def _draw_list(panel: Axes, table: StudyTable, measure: Measure) -> None:
    """A dot for each point, one below the other."""
    rows = table.rows
    values = [row.measures.get(measure.column) for row in rows]
    places = np.arange(len(rows))
    panel.plot(
        [math.nan if value is None else value for value in values], places, "o", color=LINE_COLOURS[0], markersize=4.5
    )
    lost = [place for place, row in zip(places, rows, strict=True) if not row.has_finished]
    panel.plot([0.02] * len(lost), lost, "x", color=INK, markersize=5.0, transform=panel.get_yaxis_transform())
    if len(rows) <= _LISTED:
        panel.set_yticks(places, [_short(row.label) for row in rows])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_title(measure.title, fontsize="small")
    _scale(panel, "x", measure, table.finished)


def _scale(
    panel: Axes, which: Literal["x", "y"], measure: Measure, rows: Sequence[Row], *, from_0: bool = True
) -> None:
    """Scale and label an axis that shows a measure, in its unit: logarithmic where its values differ that much."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = [row.measures[measure.column] for row in rows if row.measures.get(measure.column) is not None]
    axis = panel.yaxis if which == "y" else panel.xaxis
    if measure.text is not format_share and _is_wide(values, _LOG_FROM):
        (panel.set_yscale if which == "y" else panel.set_xscale)("log")
        subs = (1.0, 2.0, 5.0) if max(values) / min(values) < _DECADES_FROM else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axis.set_minor_formatter(NullFormatter())
    elif from_0:
        (panel.set_ylim if which == "y" else panel.set_xlim)(0, 1.1 * max(values, default=1.0) or 1.0)
    axis.set_major_formatter(_formatter(measure))


def _draw_bound(panel: Axes, measure: Measure, table: StudyTable) -> None:
    """A line where the SLO ends, if it has a word on this measure and that is in sight."""
    bound = table.study.slo.get(measure.column)
    low, high = panel.get_ylim()
    if bound is not None and low < bound < high:
        panel.axhline(bound, **_SLO_LINE)
        panel.set_ylim(low, high)


def _formatter(measure: Measure) -> Formatter:
    from matplotlib.ticker import FuncFormatter

    text = _TICKS.get(measure.text, format_number)
    return FuncFormatter(lambda value, _: text(value))


_TICKS: Mapping[Callable[..., str], Callable[[float], str]] = {
    format_seconds: format_seconds,
    format_share: lambda value: f"{100 * value:g}%",
    format_dollars: lambda value: f"${value:g}",
}
"""How a measure's values stand at an axis, by how they stand in text."""


# The Pareto front.


def has_front(table: StudyTable) -> bool:
    """Whether there are points to compare by cost and latency."""
    return len(table.comparable) > 1 and any(_fronts(table).values())


def fronts_inches(table: StudyTable) -> float:
    """How high the fronts are together, with the names of their points below."""
    return 3.6 + 0.2 * len(_letters(table))


def draw_fronts(table: StudyTable, figure: FigureBase) -> None:
    """Cost against p99 TTFT and p99 TPOT: all points, and those that no other beats in both, each with its letter."""
    cost, letters = cost_measure(table), _letters(table)
    panels = figure.subplots(1, 2)
    for panel, (column, best) in zip(panels, _fronts(table).items(), strict=True):
        latency = measure_named(column)
        having = [row for row in table.comparable if _has(row, cost, latency)]
        panel.plot(
            *_places(having, cost, latency), "o", color=_GREY, alpha=0.6, markersize=4.0, label="another beats it"
        )
        panel.plot(
            *_places(best, cost, latency), "o-", color=LINE_COLOURS[1], markersize=5.0, drawstyle="steps-post",
            label="none beats it",
        )  # fmt: skip
        for row in best:
            if row.key in letters:
                panel.annotate(
                    letters[row.key][0], (row.measures[cost.column], row.measures[column]), xytext=(4, 4),
                    textcoords="offset points", fontsize="small", fontweight="bold",
                )  # fmt: skip
        _scale(panel, "x", cost, having, from_0=False)
        _scale(panel, "y", latency, having, from_0=False)
        panel.margins(0.12)
        _draw_bound(panel, latency, table)
        panel.set_xlabel(cost.title)
        panel.set_title(latency.title, fontsize="small")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, borderaxespad=0.0)
    names = "\n".join(f"{letter}  {_short(label, 110)}" for letter, label in letters.values())
    figure.supxlabel(names, ha="left", x=0.01, fontsize="small")


def _fronts(table: StudyTable) -> dict[str, list[Row]]:
    cost = cost_measure(table)
    return {column: front(table.comparable, cost, measure_named(column)) for column in ("ttft_p99_s", "tpot_p99_s")}


def _letters(table: StudyTable) -> dict[str, tuple[str, str]]:
    """(letter, label) of points of a front, by their hash; the first ones, if there are many."""
    rows = {row.key: row for best in _fronts(table).values() for row in best}
    ordered = sorted(rows.values(), key=lambda row: row.measures[cost_measure(table).column])[:_NAMED]
    return {row.key: (chr(ord("A") + nth), row.label) for nth, row in enumerate(ordered)}


def _has(row: Row, *measures: Measure) -> bool:
    return all(row.measures.get(measure.column) is not None for measure in measures)


def _places(rows: Sequence[Row], across: Measure, up: Measure) -> tuple[list[float], list[float]]:
    return [row.measures[across.column] for row in rows], [row.measures[up.column] for row in rows]


# Numbers and names.


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(map(is_number, values))


def _is_wide(values: Any, ratio: float) -> bool:
    """Whether values, all above 0, differ by more than a factor."""
    listed = list(values)
    return bool(listed) and min(listed) > 0 and max(listed) / min(listed) >= ratio


def _tick(text: str) -> str:
    return _short(text, 20)


def _short(text: str, most: int = 44) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
