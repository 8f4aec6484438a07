"""Draw what groupings waste of one request as a heat map: models by policies, or lengths by policies for one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvcache.policies import POLICIES
from simulator.static_waste import ModelWaste

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["heat_map"]

_MOST_PANELS = 3
_PANEL_INCHES, _ROW_INCHES, _MARGIN_INCHES = 5.2, 0.19, 1.6
_DOTS_PER_INCH = 110
_LIGHT_FROM_PCT = 55.0  # cells are dark from here on: their figures are white
_WORST_SHOWN_PCT = 100.0


@dataclass(frozen=True, eq=False)
class _Panel:
    title: str
    rows: Sequence[str]
    wasted_pct: npt.NDArray[np.float64]
    """[rows, policies]; NaN where there is no figure."""


def heat_map(wastes: Sequence[ModelWaste]) -> bytes:
    """A PNG; models whose layers are of one type are left out where others are there."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [waste for waste in wastes if waste.is_hybrid] or list(wastes)
    asked_for = {name for waste in drawn for name in (*waste.grouped, *waste.refused)}
    policies = [name for name in POLICIES if name in asked_for]
    panels = _of_one_model(drawn[0], policies) if len(drawn) == 1 else _of_models(drawn, policies)
    num_rows = max(len(panel.rows) for panel in panels)
    size = 2.0 + _PANEL_INCHES * len(panels), _MARGIN_INCHES + _ROW_INCHES * num_rows
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, panel in zip(axes, panels, strict=True):
        _draw_panel(place, panel, policies)
    axes[0].set_yticks(range(num_rows), panels[0].rows, fontsize=7)
    figure.suptitle("Bytes that one request holds and does not need, in percent", fontsize=11)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _of_one_model(waste: ModelWaste, policies: Sequence[str]) -> list[_Panel]:
    rows = [f"{length:,} tokens" for length in waste.lengths]
    wasted = [[_pct(waste, policy, length) for policy in policies] for length in waste.lengths]
    return [_Panel(waste.model.name, rows, np.array(wasted).reshape(len(rows), len(policies)))]


def _of_models(wastes: Sequence[ModelWaste], policies: Sequence[str]) -> list[_Panel]:
    names = [waste.model.name for waste in wastes]
    lengths = _shown_lengths(sorted({length for waste in wastes for length in waste.lengths}))
    return [
        _Panel(
            f"{length:,} tokens", names,
            np.array([[_pct(waste, policy, length) for policy in policies] for waste in wastes]),
        )
        for length in lengths
    ]  # fmt: skip


def _shown_lengths(lengths: Sequence[int]) -> list[int]:
    """The shortest, the longest and one between."""
    if len(lengths) <= _MOST_PANELS:
        return list(lengths)
    return [lengths[0], lengths[len(lengths) // 2], lengths[-1]]


def _draw_panel(axes: Axes, panel: _Panel, policies: Sequence[str]) -> None:
    axes.imshow(panel.wasted_pct, aspect="auto", cmap="Blues", vmin=0, vmax=_WORST_SHOWN_PCT, interpolation="nearest")
    axes.set_xticks(range(len(policies)), policies, rotation=40, ha="right", fontsize=7)
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.tick_params(length=0)
    for (row, column), pct in np.ndenumerate(panel.wasted_pct):
        text = "–" if np.isnan(pct) else f"{pct:.0f}" if pct >= 10 else f"{abs(pct):.1f}"
        colour = "white" if pct >= _LIGHT_FROM_PCT else "#1a1d21"
        axes.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)


def _pct(waste: ModelWaste, policy: str, length: int) -> float:
    """NaN where the policy refuses or the model has no such length."""
    if policy not in waste.grouped or length not in waste.lengths:
        return float("nan")
    return waste.grouped[policy].waste(length).wasted_pct
