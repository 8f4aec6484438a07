"""Draw a plan: all fleets by price and by how near they come to breaking the SLO, and what one replica sustains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simulator.planner_words import fleet_in_short
from simulator.plots import INK, LINE_COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    from simulator.planner import Candidate
    from simulator.planner_study import FleetPlan

__all__ = ["RATES_INCHES", "draw_fleets", "draw_rates", "fleets_inches"]

RATES_INCHES = 3.4
"""How high that figure is."""
_PANEL_INCHES, _SPARED_INCHES = 3.3, 1.3
_COLUMNS = 3
"""Models side by side, at most."""

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_HOLDS, _FAILS, _CLOSE, _GROWS, _PRUNED = "#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#999999"
_HIGHEST_RATIO = 30.0
"""What is beyond is drawn at the edge."""
_LOWEST_RATIO = 0.05
_CLOSE_PLACES = 1.15
"""Ratio of prices, and of measures, up to which two names would cover each other."""
_MARKERS = "osD^v"
_STYLES = {
    "holds": ("holds", "o", _HOLDS),
    "close": ("too close to call: taken as failing", "^", _CLOSE),
    "fails": ("fails", "X", _FAILS),
    "grows": ("fails, and its queue grows", "P", _GROWS),
}
"""Label, marker and colour of each kind of fleet."""
_LABELS = (*(label for label, _, _ in _STYLES.values()), "the limit")


def fleets_inches(plan: FleetPlan) -> float:
    """How high the figure of all fleets is."""
    return _PANEL_INCHES * math.ceil(len(plan.models) / _COLUMNS) + _SPARED_INCHES


def draw_fleets(plan: FleetPlan, figure: FigureBase) -> None:
    """Above, simulated fleets: price against the tightest measure over its limit. Below, what arithmetic spared.

    At least one was simulated. A panel for each model, with the same axes.
    """
    models = plan.models
    num_rows, num_columns = math.ceil(len(models) / _COLUMNS), min(len(models), _COLUMNS)
    grid = figure.add_gridspec(num_rows + 1, num_columns, height_ratios=[_PANEL_INCHES] * num_rows + [_SPARED_INCHES])
    first = None
    labelled: dict[str, Artist] = {}
    for nth, model in enumerate(models):
        axes = figure.add_subplot(grid[divmod(nth, num_columns)], sharex=first, sharey=first)
        first = first or axes
        _draw_simulated(plan, model, axes)
        handles, labels = axes.get_legend_handles_labels()
        labelled |= dict(zip(labels, handles, strict=True))
        if len(models) > 1:
            axes.set_title(model)
        is_left, is_low = nth % num_columns == 0, nth + num_columns >= len(models)
        axes.set_ylabel("Tightest measure / its limit" if is_left else "")
        axes.set_xlabel("Price of the fleet (dollars an hour)" if is_low else "")
        axes.tick_params(labelleft=is_left, labelbottom=is_low)
    assert first is not None
    _scale(plan, first)
    lower = figure.add_subplot(grid[num_rows, :])
    _draw_spared(plan, lower)
    lower.set_xlabel("Price of the least fleet, or of one replica (dollars an hour)")
    handles = [labelled[label] for label in _LABELS if label in labelled]
    figure.legend(handles=handles, loc="outside upper left", ncols=5, borderaxespad=0.0)


def _draw_simulated(plan: FleetPlan, model: str, axes: Axes) -> None:
    kinds: dict[str, list[Candidate]] = {kind: [] for kind in _STYLES}
    own = [each for each in plan.search.verdicts if plan.servers[each.choice.name].model == model]
    for candidate in own:
        verdict = plan.verdict(candidate)
        kind = "grows" if verdict.is_growing else "close" if verdict.is_close else "fails"
        kinds["holds" if verdict.holds else kind].append(candidate)
    for kind, (label, marker, colour) in _STYLES.items():
        if kinds[kind]:
            prices = [plan.search.dollars_per_hour(each) for each in kinds[kind]]
            ratios = [_ratio(plan, each) for each in kinds[kind]]
            axes.scatter(prices, ratios, marker=marker, color=colour, s=34, label=label, linewidths=0, zorder=3)
    axes.axhline(1.0, color=INK, linewidth=1.0, linestyle="--", label="the limit")
    _name_the_best(plan, own, axes)


def _scale(plan: FleetPlan, axes: Axes) -> None:
    """So that all fleets are within."""
    prices = [plan.search.dollars_per_hour(each) for each in plan.search.verdicts]
    axes.set_xlim(0.85 * min(prices), 1.15 * max(prices) or 1.0)
    axes.xaxis.set_major_formatter(_price)
    ratios = [_ratio(plan, each) for each in plan.search.verdicts]
    _scale_ratios(axes, min(0.6, *ratios) / 2, max(1.5, *ratios) * 1.4)


def _ratio(plan: FleetPlan, candidate: Candidate) -> float:
    """Of the tightest measure, drawn at the edge where it is beyond; a fleet that cannot serve is there, too."""
    return min(max(plan.verdict(candidate).ratio, _LOWEST_RATIO), _HIGHEST_RATIO)


def _name_the_best(plan: FleetPlan, own: Sequence[Candidate], axes: Axes) -> None:
    """Of one model's fleets. A name is on that side of its place where there is more room."""
    named = [plan.best, *plan.next_best, *plan.best_of_others.values()]
    dearest = max(plan.search.dollars_per_hour(each) for each in plan.search.verdicts)
    places: list[tuple[float, float]] = []
    ours = {each for each in named if each is not None and each in own}
    for candidate in sorted(ours, key=lambda each: (-_ratio(plan, each), plan.search.rank(each))):
        at = plan.search.dollars_per_hour(candidate), _ratio(plan, candidate)
        is_best, is_right = candidate == plan.best, at[0] > 0.6 * dearest
        if is_best:
            axes.scatter(*at, marker="o", s=130, facecolors="none", edgecolors=_HOLDS, linewidths=1.4, zorder=4)
        crowd = sum(_are_close(at, place) for place in places)
        axes.annotate(
            fleet_in_short(plan, candidate), at, xytext=(-10 if is_right else 10, -3 - 12 * crowd),
            textcoords="offset points", horizontalalignment="right" if is_right else "left",
            fontsize="small", fontweight="bold" if is_best else "normal",
        )  # fmt: skip
        places.append(at)


def _are_close(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Whether names beside these places, (price, ratio), would cover each other."""
    return all(max(pair) < _CLOSE_PLACES * min(pair) for pair in zip(first, second, strict=True))


def _draw_spared(plan: FleetPlan, axes: Axes) -> None:
    """Where arithmetic alone decided: at the price of the least fleet, of those without any at that of one replica."""
    search = plan.search
    rows: dict[str, list[float]] = {"least fleet too dear": [], "no number will do": []}
    for choice in search.choices:
        if choice.wall is not None:
            rows["no number will do"].append(choice.dollars_per_hour)
        elif search.fate(choice) == "bounded":
            rows["least fleet too dear"].append(choice.dollars_per_hour * (choice.least_replicas + search.limits.spare))
    for place, (why, prices) in enumerate(rows.items()):
        axes.scatter(prices, [place] * len(prices), marker="|", color=_PRUNED, s=90, linewidths=1.6)
        # Beside the axis these words would push the label of the axis above away from its figures.
        axes.annotate(why, (0.005, place + 0.42), xycoords=("axes fraction", "data"), fontsize="small")
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(rows) - 0.1)
    axes.grid(axis="y", visible=False)
    axes.set_title("Excluded by arithmetic, without a run", fontsize="small")
    drawn = [price for prices in rows.values() for price in prices]
    if drawn and min(drawn) > 0:
        _scale_prices(axes)
    axes.xaxis.set_major_formatter(_price)


def _price(dollars: float, _position: float | None = None) -> str:
    return f"${dollars:g}"


def _scale_prices(axes: Axes) -> None:
    """A logarithmic axis of dollars, on which also less than a decade has ticks."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())


def _scale_ratios(axes: Axes, low: float, high: float) -> None:
    """A logarithmic axis of measures over their limits."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}×"))


def draw_rates(plan: FleetPlan, figure: FigureBase) -> None:
    """Each limit's measure against the rate of one replica alone, for the best kinds; dotted: what it sustains."""
    assert plan.best is not None
    limits = [finding.name for finding in plan.verdict(plan.best).findings][:3]
    panels = figure.subplots(1, len(limits), squeeze=False)[0]
    for axes, name in zip(panels, limits, strict=True):
        _draw_limit(plan, axes, name)
        axes.set_title(f"{name} / its limit")
        axes.set_xlabel("Requests/s of one replica")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, borderaxespad=0.0)


def _draw_limit(plan: FleetPlan, axes: Axes, limit: str) -> None:
    """A line for each seed: what it measures at rising rates."""
    seen = [1.0]
    for nth, (name, sustained) in enumerate(plan.sustained.items()):
        colour, marker = LINE_COLOURS[nth % len(LINE_COLOURS)], _MARKERS[nth % len(_MARKERS)]
        label: str | None = name
        for seed in sustained.brackets:
            places = [
                (rate, min(max(finding.ratio, _LOWEST_RATIO), _HIGHEST_RATIO))
                for of_seed, rate, verdict in sustained.points
                for finding in verdict.findings
                if of_seed == seed and finding.name == limit
            ]
            if places:
                rates, ratios = zip(*places, strict=True)
                axes.plot(rates, ratios, marker=marker, ms=3.5, color=colour, linewidth=0.8, alpha=0.8, label=label)
                seen += ratios
                label = None
        axes.axvline(sustained.per_s.mean, color=colour, linewidth=0.9, linestyle=":")
    axes.axhline(1.0, color=INK, linewidth=1.0, linestyle="--")
    axes.set_xlim(left=0)
    _scale_ratios(axes, min(seen) / 1.3, max(seen) * 1.3)
