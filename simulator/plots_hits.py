"""Draw which blocks of one prompt can be hit, a row for each KV cache group, and where the hit ends on which all agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from kvcache.manager import KVCacheManager, RequestBlocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GroupBlocks", "blocks_of_prompt", "draw_hit"]

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_READ, _CACHED, _MISSING, _CUT = "#0072B2", "#56B4E9", "#e4e6e9", "#D55E00"
_LABELS = {_READ: "cached, the hit reads it", _CACHED: "cached, not read", _MISSING: "not cached"}
_ROW, _GAP = 0.8, 0.45
"""Heights of a row, and of the space between two attention types, where a group takes 1."""
_THIN_FROM_BLOCKS = 160
"""From so many in a row on, blocks are drawn without lines between them."""


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


def blocks_of_prompt(manager: KVCacheManager, request: RequestBlocks) -> list[GroupBlocks]:
    """For each KV cache group, in the manager's order, which blocks of a request's prompt can be hit now.

    Nothing is noted of it: the pool is as it was.
    """
    keys, num_tokens = request.keys.first(request.prompt_tokens // manager.hash_unit), request.prompt_tokens
    hit_tokens = manager.peek_hit(request.keys, num_tokens)
    groups = []
    for each in manager.managers:
        size = each.block_size
        first = each.first_hit_position(hit_tokens) if hit_tokens else 0
        block_keys = each.block_keys(keys, 0, num_tokens // size)
        for offset in each.key_offsets:
            is_cached = tuple(key + offset in each.block_of for key in block_keys)
            groups.append(GroupBlocks(each.spec.kind, size, is_cached, range(first, hit_tokens // size)))
    return groups


def draw_hit(manager: KVCacheManager, request: RequestBlocks, axes: Axes) -> None:
    """A row of blocks for each KV cache group, groups of one kind close together, and a line where the hit ends."""
    from matplotlib.patches import Patch

    groups = blocks_of_prompt(manager, request)
    hit_tokens = manager.peek_hit(request.keys, request.prompt_tokens)
    top, ticks, names = 0.0, [], []
    for kind, alike in groupby(groups, key=lambda group: group.kind):
        rows = list(alike)
        for nth, group in enumerate(rows):
            _draw_row(axes, group, top + nth)
        ticks.append(top + (len(rows) - 1) / 2 + _ROW / 2)
        names.append(kind if len(rows) == 1 else f"{kind}, {len(rows)} groups")
        top += len(rows) + _GAP
    axes.axvline(hit_tokens, color=_CUT, linewidth=2)
    axes.set_xlim(-0.004 * request.prompt_tokens, request.prompt_tokens)
    axes.set_ylim(top - _GAP, -0.2)
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.grid(visible=False)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    patches = [Patch(color=colour, label=label) for colour, label in _LABELS.items()]
    end = axes.plot([], [], color=_CUT, linewidth=2, label="the hit ends")
    axes.legend(handles=[*patches, *end])
    axes.get_legend().set_visible(False)


def _draw_row(axes: Axes, group: GroupBlocks, top: float) -> None:
    edge = 0.0 if len(group.is_cached) >= _THIN_FROM_BLOCKS else 0.5
    for colour, positions in _by_colour(group).items():
        spans = [(position * group.block_size, group.block_size) for position in positions]
        axes.broken_barh(spans, (top, _ROW), facecolor=colour, edgecolor="white", linewidth=edge)


def _by_colour(group: GroupBlocks) -> dict[str, Sequence[int]]:
    colours = [
        (_READ if position in group.read else _CACHED) if is_cached else _MISSING
        for position, is_cached in enumerate(group.is_cached)
    ]
    return {wanted: [nth for nth, colour in enumerate(colours) if colour == wanted] for wanted in _LABELS}
