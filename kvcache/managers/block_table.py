"""A block table: which blocks hold one request's tokens in the groups of one manager.

```
positions of one request's blocks in one group
 0 ........... first_held ........... num_cached ........... num_positions
 | null blocks | looked at for caching | not full, or just taken |
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.hashing import PrefixKeys

if TYPE_CHECKING:
    from kvcache.managers.base import SingleTypeManager

__all__ = ["NEVER", "BlockTable"]

NEVER = 1 << 62
"""A number of computed tokens that no request reaches."""


class BlockTable:
    """The blocks of one request in the groups of one manager."""

    __slots__ = (
        "first_held",
        "free_at",
        "hashed",
        "ids",
        "keys",
        "manager",
        "num_cached",
        "num_slots",
        "prompt_tokens",
        "was_freed",
    )

    def __init__(self, manager: SingleTypeManager, keys: PrefixKeys, prompt_tokens: int) -> None:
        self.manager = manager
        self.keys = keys
        self.prompt_tokens = prompt_tokens
        self.ids: list[int] = []
        """Block ids from position `first_held` on, one per group for each position."""
        self.first_held = 0
        self.num_slots = 0
        """Tokens that the table has room for, null blocks included: its positions times the block size."""
        self.free_at = NEVER
        """Settled tokens at which the first held block is no longer needed."""
        self.num_cached = 0
        """Positions below it have been looked at for caching."""
        self.hashed: list[tuple[int, int]] = []
        """Ranges of positions whose blocks were hashed; ascending, disjoint and apart."""
        self.was_freed = False
        """The request was preempted before."""

    def mark_hashed(self, start: int, end: int) -> None:
        """Remember that the blocks at positions `start` to `end` (exclusive) are hashed."""
        ranges = self.hashed
        while ranges and ranges[-1][1] >= start:
            first, last = ranges.pop()
            start, end = min(start, first), max(end, last)
        ranges.append((start, end))

    def split(self, start: int, end: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(hashed, unhashed) ranges within positions `start` to `end`, both ascending."""
        if not self.hashed or self.hashed[-1][1] <= start:
            return [], [(start, end)]
        hashed: list[tuple[int, int]] = []
        unhashed: list[tuple[int, int]] = []
        for first, last in self.hashed:
            first, last = max(first, start), min(last, end)  # noqa: PLW2901  clipped
            if first < last:
                if start < first:
                    unhashed.append((start, first))
                hashed.append((first, last))
                start = last
        if start < end:
            unhashed.append((start, end))
        return hashed, unhashed
