"""Draw what groupings waste as a heat map, models by policies, with the figures beside it as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvcache.policies import POLICIES
from kvcache.waste import WASTE_CAUSES
from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simulator.waste_command import ModelWaste

__all__ = ["write_waste"]

_COLUMNS = ("model", "policy", "request_tokens", "groups", "group_size", "padding_slots", "pool_bytes", "wasted_pct")
_MOST_PANELS = 3
_PANEL_INCHES, _ROW_INCHES, _MARGIN_INCHES = 5.2, 0.19, 1.6
_DOTS_PER_INCH = 110
_LIGHT_FROM_PCT = 55.0  # cells are dark from here on: their figures are white
_WORST_SHOWN_PCT = 100.0


def write_waste(wastes: Sequence[ModelWaste], folder: Path) -> None:
    """Write `waste.csv` with all rows and `waste.png` with the hybrid models into `folder`.

    Raises ScenarioError where that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "waste.csv", lambda file: _write_table(wastes, file))
        write_whole(folder / "waste.png", lambda file: _draw(wastes, file))
    except OSError as error:
        raise ScenarioError(f"--out: {folder} cannot be written: {error.strerror}") from None


def _write_table(wastes: Sequence[ModelWaste], file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow([*_COLUMNS, "needed_bytes", *(f"{cause}_bytes" for cause in WASTE_CAUSES), "refused"])
        for row in (row for waste in wastes for row in waste.rows()):
            parts = (row["ledger"] or {}).get
            writer.writerow([*map(row.get, _COLUMNS), *map(parts, ("needed", *WASTE_CAUSES)), row["refused"]])


def _draw(wastes: Sequence[ModelWaste], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [waste for waste in wastes if waste.is_hybrid] or list(wastes)
    lengths = _shown_lengths(sorted({length for waste in drawn for length in waste.lengths}))
    asked_for = {name for waste in drawn for name in (*waste.grouped, *waste.refused)}
    policies = [name for name in POLICIES if name in asked_for]
    size = 2.0 + _PANEL_INCHES * max(1, len(lengths)), _MARGIN_INCHES + _ROW_INCHES * len(drawn)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, max(1, len(lengths)), sharey=True, squeeze=False)[0]
    for panel, length in zip(axes, lengths, strict=False):
        _draw_panel(panel, drawn, policies, length)
    axes[0].set_yticks(range(len(drawn)), [waste.model.name for waste in drawn], fontsize=7)
    figure.suptitle("Bytes that one request holds and does not need, in percent", fontsize=11)
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)


def _shown_lengths(lengths: Sequence[int]) -> list[int]:
    """The shortest, the longest and one between."""
    if len(lengths) <= _MOST_PANELS:
        return list(lengths)
    return [lengths[0], lengths[len(lengths) // 2], lengths[-1]]


def _draw_panel(axes: Axes, wastes: Sequence[ModelWaste], policies: Sequence[str], length: int) -> None:
    wasted = np.array([[_pct(waste, policy, length) for policy in policies] for waste in wastes])  # [models, policies]
    axes.imshow(wasted, aspect="auto", cmap="Blues", vmin=0, vmax=_WORST_SHOWN_PCT, interpolation="nearest")
    axes.set_xticks(range(len(policies)), policies, rotation=40, ha="right", fontsize=7)
    axes.set_title(f"{length:,} tokens", fontsize=9, loc="left")
    axes.tick_params(length=0)
    for (row, column), pct in np.ndenumerate(wasted):
        text = "–" if np.isnan(pct) else f"{pct:.0f}" if pct >= 10 else f"{abs(pct):.1f}"
        colour = "white" if pct >= _LIGHT_FROM_PCT else "#1a1d21"
        axes.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)


def _pct(waste: ModelWaste, policy: str, length: int) -> float:
    """NaN where the policy refuses or the model has no such length."""
    if policy not in waste.grouped or length not in waste.lengths:
        return float("nan")
    return waste.grouped[policy].waste(length).wasted_pct
