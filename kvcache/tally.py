"""Counts of one attention type's blocks, kept up to date as blocks move: what the memory ledger is made of.

A free block of a window, a chunk or a state can still be hit only while full attention has the same prefix.
So each is anchored to a key of full attention: the one of the block that ends where the shortest hit which uses
it ends. When that key finds no block any more, what is anchored to it is unreachable, until somebody computes
the prefix again. Where blocks are smaller than the step of hits and requests part within such a step, the prefix
is that of the request which gave the block back.
"""

from itertools import repeat

__all__ = ["Run", "Tally"]


class Run:
    """Hashed blocks that became free together, in the order of reuse: one group's, then the next one's."""

    __slots__ = ("anchors", "blocks", "is_lost", "is_whole", "keys", "next", "num_lost", "tally")

    def __init__(self, keys: list[int], blocks: list[int], tally: "Tally", anchors: list[int]) -> None:
        self.keys = keys
        self.blocks = blocks
        self.tally = tally
        self.anchors = anchors
        """For each position, what its blocks are anchored to; none if they can be hit on their own."""
        self.is_lost = bytearray(len(anchors))
        """Of each position, whether its anchor finds no block."""
        self.num_lost = 0
        self.next = 0
        """Index of the first block that was not reused yet."""
        self.is_whole = True
        """No block from `next` on has been hit."""

    def num_lost_among(self, indices: range) -> int:
        """How many of these blocks are unreachable."""
        num_positions = len(self.anchors)
        if self.num_lost in (0, num_positions):
            return len(indices) if self.num_lost else 0
        return sum([self.is_lost[index % num_positions] for index in indices])

    def num_free_at(self, position: int, run_of: "list[Run | None]") -> int:
        """Blocks of a position that are still in the run, over all groups."""
        num_positions = len(self.anchors)
        first = max(position, self.next + (position - self.next) % num_positions)
        if self.is_whole:
            return len(range(first, len(self.blocks), num_positions))
        return len([None for block in self.blocks[first::num_positions] if run_of[block] is self])


NO_KEYS: set[int] = set()
Place = tuple[Run, int]
"""A run, and a position in it."""


class Tally:
    """What the pool and the managers note down about the blocks of one attention type."""

    __slots__ = (
        "_more_places",
        "_place_of",
        "extra_holders",
        "num_cached",
        "num_given_back",
        "num_groups",
        "num_positions",
        "num_unreachable",
        "run_of",
    )

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups
        self.num_positions = 0
        """Positions that block tables hold: each is a block in every group."""
        self.num_given_back = 0
        """Positions at the beginning of these tables that hold nothing any more."""
        self.extra_holders = [0] * num_groups
        """For each group, the holders that blocks have beside their first."""
        self.num_cached = 0
        """Free blocks that have a hash, over all groups."""
        self.num_unreachable = 0
        """Those of them whose prefix full attention does not have any more."""
        self.run_of: list[Run | None] = []
        """The pool's: the run in which each block is free."""
        self._place_of: dict[int, Place] = {}
        """By anchor, where the free blocks are that need it."""
        self._more_places: dict[int, list[Place]] = {}
        """The other places of an anchor that has several."""

    def num_blocks(self, nth_group: int) -> int:
        """Different blocks that tables hold in one group."""
        return self.num_positions - self.extra_holders[nth_group]

    # Free blocks that need full attention's prefix.

    def enter(self, run: Run, block_of: dict[int, int]) -> None:
        """A run of hashed blocks has become free."""
        place_of, anchors = self._place_of, run.anchors
        places: dict[int, Place] = dict(zip(anchors, zip(repeat(run), range(len(anchors)), strict=False), strict=True))
        if len(places) < len(anchors):  # not all groups have the same positions: one by one
            for position, anchor in enumerate(anchors):
                place = run, position
                if place_of.setdefault(anchor, place) is not place:
                    self._more_places.setdefault(anchor, []).append(place)
        else:
            for anchor in place_of.keys() & anchors:
                self._more_places.setdefault(anchor, []).append(places.pop(anchor))
            place_of.update(places)
        for position, anchor in enumerate(anchors):
            if anchor not in block_of:
                self._mark(run, position, 1)

    def leave(self, run: Run) -> None:
        """No block of the run is free any more."""
        place_of, anchors = self._place_of, run.anchors
        several = self._more_places.keys() & anchors if self._more_places else NO_KEYS
        if not several:
            for anchor in anchors:
                del place_of[anchor]
            return
        for anchor in anchors:
            if anchor in several:
                self._leave_one(run, anchor)
            else:
                del place_of[anchor]

    def _leave_one(self, run: Run, anchor: int) -> None:
        others = self._more_places.get(anchor)
        if others is None:
            del self._place_of[anchor]
            return
        if self._place_of[anchor][0] is run:
            self._place_of[anchor] = others.pop()
        else:
            others.remove(next(place for place in others if place[0] is run))
        if not others:
            del self._more_places[anchor]

    def lose(self, keys: list[int]) -> None:
        """These keys of full attention find no block any more."""
        if self._place_of and not self._place_of.keys().isdisjoint(keys):
            for key in self._place_of.keys() & keys:
                self._mark_all(key, 1)

    def find(self, keys: list[int], block_of: dict[int, int]) -> None:
        """These keys are about to find blocks, those that have none yet."""
        if self.num_unreachable and not self._place_of.keys().isdisjoint(keys):
            for key in self._place_of.keys() & keys:
                if key not in block_of:
                    self._mark_all(key, 0)

    def _mark_all(self, anchor: int, is_lost: int) -> None:
        for run, position in (self._place_of[anchor], *self._more_places.get(anchor, ())):
            self._mark(run, position, is_lost)

    def _mark(self, run: Run, position: int, is_lost: int) -> None:
        change = is_lost - run.is_lost[position]
        run.is_lost[position] = is_lost
        run.num_lost += change
        self.num_unreachable += change * run.num_free_at(position, self.run_of)
