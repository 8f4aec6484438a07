"""Draw a disaggregated run: where a request's time goes, and what travels for prompts of every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.deployment import Deployment
from simulator.disaggregated_result import stage_seconds
from simulator.hand_over import bytes_if_all_were_full, travelling_bytes
from simulator.plots import INK, LINE_COLOURS, FigureKind, figures, legend_above
from simulator.result import Result
from simulator.summary_table import STAGE_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

__all__ = ["disaggregation_figures", "draw_stages", "draw_travelling"]

MOST_GROUPS = 10
BEFORE_THE_FIRST_TOKEN = [name for name in STAGE_NAMES if name != "decode"]
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#CC79A7", "#E69F00", "#999999", "#009E73")
"""Okabe and Ito's."""
STAGE_COLOURS = dict(zip(BEFORE_THE_FIRST_TOKEN, COLOURS, strict=True))
HATCHED = ("link_queue", "decode_queue")
"""Waiting, beside stages in which something is done."""
GIB = 2.0**30


def disaggregation_figures(result: Result) -> dict[str, bytes]:
    """Name to SVG of each figure that only a disaggregated run has."""
    return figures(result, [FigureKind("stages", draw_stages, _has_stages, 3.6)])


def _has_stages(result: Result) -> bool:
    return "transfer_end_s" in result.requests and bool((result.requests["status"] == "finished").any())


def draw_stages(result: Result, figure: FigureBase) -> None:
    """Mean time to first token by stage, for requests from the fastest tenth to the slowest."""
    seconds = stage_seconds(result.tables["requests"])
    until_first = np.sum([seconds[name] for name in BEFORE_THE_FIRST_TOKEN], axis=0)
    groups = [group for group in np.array_split(np.argsort(until_first, kind="stable"), MOST_GROUPS) if len(group)]
    unit_s, unit = (1.0, "s") if until_first.max() >= 1 else (1e-3, "ms")
    axes = figure.subplots()
    at = np.arange(len(groups))
    below = np.zeros(len(groups))
    for name in BEFORE_THE_FIRST_TOKEN:
        heights = np.array([seconds[name][group].mean() for group in groups]) / unit_s
        axes.bar(
            at, heights, 0.8, below, color=STAGE_COLOURS[name], label=STAGE_NAMES[name], linewidth=0,
            hatch="///" if name in HATCHED else None, edgecolor="white",
        )  # fmt: skip
        below += heights
    axes.set_xticks(at, [f"{number + 1}" for number in at])
    axes.set_xlabel("Tenth of the requests, by time to first token")
    axes.set_ylabel(f"Mean time to first token ({unit})")
    axes.grid(visible=False, axis="x")
    legend_above(figure, axes)


def draw_travelling(models: Mapping[str, Deployment], prompt_tokens: Sequence[int], figure: FigureBase) -> None:
    """Bytes that travel for a prompt of so many tokens of which the decode replica holds nothing.

    Beside what each model's layers need: if all of them kept every token, as those with full attention do.
    """
    all_axes = figure.subplots(1, len(models), sharex=True, squeeze=False)[0]
    at = np.asarray(prompt_tokens) / 1000
    for axes, colour, (name, deployment) in zip(all_axes, LINE_COLOURS, models.items(), strict=False):
        lean, full = (
            np.array([count(deployment, tokens) for tokens in prompt_tokens]) / GIB
            for count in (travelling_bytes, bytes_if_all_were_full)
        )
        axes.fill_between(at, lean, full, color=colour, alpha=0.12, linewidth=0)
        axes.plot(at, full, color=INK, linestyle="dashed", label="if all layers were full")
        axes.plot(at, lean, color=colour, label="what the layers need")
        axes.set_title(f"{name}: {1 - lean.sum() / full.sum():.0%} less")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, at[-1])
        axes.set_xlabel("Prompt (thousand tokens)")
        axes.legend(loc="upper left")
    all_axes[0].set_ylabel("Bytes that travel (GiB)")
