"""Draw which blocks of a prompt can be hit: a row for each KV cache group, and where the hit ends that all agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from kvcache.manager import KVCacheManager, RequestBlocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

__all__ = ["CachedPrompt", "GroupBlocks", "draw_prompts", "look_up"]

# Okabe and Ito's blues and red, which colour-blind readers can tell apart, and a pale grey.
_READ, _CACHED, _MISSING, _END = "#0072B2", "#56B4E9", "#e4e6e9", "#D55E00"
_LABELS = {_READ: "cached, read by the hit", _CACHED: "cached, of no use to it", _MISSING: "not cached"}
_ROW, _GAP = 0.8, 0.5
"""Heights of a row, and of the space between two attention types, where a group takes 1."""
_LINES_POINTS = 16.0
"""Width of all lines between the blocks of a row together: they must not hide the blocks."""


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """The whole blocks of one prompt in one KV cache group."""

    kind: str
    """What the group keeps: "full", "sliding", "mamba" ..."""
    block_size: int
    """Tokens in a block."""
    is_cached: tuple[bool, ...]
    """[positions], whether the block can be hit."""
    read: range
    """Positions that a request with this prompt would read instead of computing them."""


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """What a prefix cache holds of one prompt at one time."""

    prompt_tokens: int
    hit_tokens: int
    """Of the beginning, that need not be computed."""
    groups: tuple[GroupBlocks, ...]
    """One for each KV cache group, in the manager's order."""


def look_up(manager: KVCacheManager, request: RequestBlocks) -> CachedPrompt:
    """What the manager holds of a request's prompt now; nothing is noted of it, the pool stays as it is."""
    num_tokens = request.prompt_tokens
    keys = request.keys.first(num_tokens // manager.hash_unit)
    hit_tokens = manager.peek_hit(request.keys, num_tokens)
    groups = []
    for each in manager.managers:
        first = each.first_hit_position(hit_tokens) if hit_tokens else 0
        read = range(first, hit_tokens // each.block_size)
        block_keys = each.block_keys(keys, 0, num_tokens // each.block_size)
        for offset in each.key_offsets:
            is_cached = tuple(key + offset in each.block_of for key in block_keys)
            groups.append(GroupBlocks(each.spec.kind, each.block_size, is_cached, read))
    return CachedPrompt(num_tokens, hit_tokens, tuple(groups))


def draw_prompts(prompts: Mapping[str, Mapping[str, CachedPrompt]], figure: FigureBase) -> None:
    """A column for each server, below one another what it held of each prompt; both have names."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    num_rows = max(len(column) for column in prompts.values())
    panels = figure.subplots(num_rows, len(prompts), squeeze=False, sharex="col")
    for nth, (server, column) in enumerate(prompts.items()):
        for row, (name, prompt) in enumerate(column.items()):
            axes = panels[row][nth]
            _draw_prompt(axes, prompt)
            title = f"{name}: a hit of {prompt.hit_tokens:,} of {prompt.prompt_tokens:,} tokens"
            axes.set_title(title if row else f"{server}\n{title}", fontsize="medium", loc="left")
        panels[len(column) - 1][nth].set_xlabel("Tokens of the prompt")
        for axes in panels[len(column) :, nth]:
            axes.set_visible(False)
    blocks = [Patch(color=colour, label=label) for colour, label in _LABELS.items()]
    end = Line2D([], [], color=_END, linewidth=2, label="end of the hit")
    figure.legend(handles=[*blocks, end], loc="outside upper left", ncols=4, frameon=False, borderaxespad=0.0)


def _draw_prompt(axes: Axes, prompt: CachedPrompt) -> None:
    top = 0.0
    middles: list[float] = []
    names: list[str] = []
    for kind, alike in groupby(prompt.groups, key=lambda group: group.kind):
        rows = list(alike)
        for nth, group in enumerate(rows):
            _draw_row(axes, group, top + nth)
        middles.append(top + (len(rows) - 1 + _ROW) / 2)
        names.append(kind if len(rows) == 1 else f"{kind}\n{len(rows)} groups")
        top += len(rows) + _GAP
    axes.axvline(prompt.hit_tokens, color=_END, linewidth=2, clip_on=False)
    axes.set_xlim(0, prompt.prompt_tokens)
    axes.set_ylim(top - _GAP, _ROW - 1)
    axes.set_yticks(middles, names)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.grid(visible=False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=6)


def _draw_row(axes: Axes, group: GroupBlocks, top: float) -> None:
    line_points = min(0.8, _LINES_POINTS / max(1, len(group.is_cached)))
    for wanted in _LABELS:
        spans = [
            (position * group.block_size, group.block_size)
            for position, is_cached in enumerate(group.is_cached)
            if _colour(is_cached, position in group.read) == wanted
        ]
        axes.broken_barh(spans, (top, _ROW), facecolor=wanted, edgecolor="white", linewidth=line_points)


def _colour(is_cached: bool, is_read: bool) -> str:
    if not is_cached:
        return _MISSING
    return _READ if is_read else _CACHED
