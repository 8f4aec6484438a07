"""Counts of one attention type's blocks, kept up to date as blocks move: what the memory ledger is made of.

A free block of a window, a chunk or a state can still be hit only while full attention has the same prefix.
So each is anchored to a key of full attention: the one of the block that ends where the shortest hit which uses
it ends. When that key finds no block any more, what is anchored to it is unreachable, until somebody computes
the prefix again. Where blocks are smaller than the step of hits and requests part within such a step, the prefix
is that of the request which gave the block back.
"""

__all__ = ["Run", "Tally"]

NO_KEYS: set[int] = set()
NONE_IS_LOST = bytearray()


class Run:
    """Hashed blocks that became free together, in the order of reuse: one group's, then the next one's."""

    __slots__ = ("_positions", "anchors", "blocks", "is_lost", "is_whole", "keys", "next", "num_lost", "tally")

    def __init__(self, keys: list[int], blocks: list[int], tally: "Tally", anchors: list[int]) -> None:
        self.keys = keys
        self.blocks = blocks
        self.tally = tally
        self.anchors = anchors
        """For each position, what its blocks are anchored to; none if they can be hit on their own."""
        self.is_lost = NONE_IS_LOST
        """Of each position, whether its anchor finds no block; made when the first is lost."""
        self.num_lost = 0
        self._positions: dict[int, list[int]] | None = None
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

    def positions_of(self, anchor: int) -> list[int]:
        """Where its blocks are that are anchored to this key."""
        if self._positions is None:  # worked out when an anchor is lost: most runs are never asked
            self._positions = {}
            for position, each in enumerate(self.anchors):
                self._positions.setdefault(each, []).append(position)
        return self._positions[anchor]

    def num_free_at(self, position: int, run_of: "list[Run | None]") -> int:
        """Blocks of a position that are still in the run, over all groups."""
        num_positions = len(self.anchors)
        first = max(position, self.next + (position - self.next) % num_positions)
        if self.is_whole:
            return len(range(first, len(self.blocks), num_positions))
        return len([None for block in self.blocks[first::num_positions] if run_of[block] is self])


class Tally:
    """What the pool and the managers note down about the blocks of one attention type."""

    __slots__ = (
        "_more_runs",
        "_run_of_anchor",
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
        self._run_of_anchor: dict[int, Run] = {}
        """By anchor, the run with free blocks that need it."""
        self._more_runs: dict[int, list[Run]] = {}
        """The other runs of an anchor that has several."""

    def num_blocks(self, nth_group: int) -> int:
        """Different blocks that tables hold in one group."""
        return self.num_positions - self.extra_holders[nth_group]

    # Free blocks that need full attention's prefix.

    def enter(self, run: Run) -> None:
        """A run of hashed blocks has become free: who gives them back has full attention's until then."""
        runs, anchors = self._run_of_anchor, run.anchors
        if runs.keys().isdisjoint(anchors):
            runs.update(dict.fromkeys(anchors, run))
        else:
            for anchor in dict.fromkeys(anchors):
                if runs.setdefault(anchor, run) is not run:
                    self._more_runs.setdefault(anchor, []).append(run)

    def leave(self, run: Run) -> None:
        """No block of the run is free any more."""
        runs, more = self._run_of_anchor, self._more_runs
        several = more.keys() & run.anchors if more else NO_KEYS
        if not several and len(run.anchors) == 1:
            del runs[run.anchors[0]]
            return
        for anchor in dict.fromkeys(run.anchors):
            if anchor not in several:
                del runs[anchor]
                continue
            others = more[anchor]
            if runs[anchor] is run:
                runs[anchor] = others.pop()
            else:
                others.remove(run)
            if not others:
                del more[anchor]

    def lose(self, keys: list[int]) -> None:
        """These keys of full attention find no block any more."""
        runs = self._run_of_anchor
        if runs and not runs.keys().isdisjoint(keys):
            for key in runs.keys() & keys:
                self._mark_all(key, 1)

    def find(self, keys: list[int], block_of: dict[int, int]) -> None:
        """These keys are about to find blocks, those that have none yet."""
        runs = self._run_of_anchor
        if self.num_unreachable and not runs.keys().isdisjoint(keys):
            for key in runs.keys() & keys:
                if key not in block_of:
                    self._mark_all(key, 0)

    def _mark_all(self, anchor: int, is_lost: int) -> None:
        for run in (self._run_of_anchor[anchor], *self._more_runs.get(anchor, ())):
            for position in run.positions_of(anchor):
                self._mark(run, position, is_lost)

    def _mark(self, run: Run, position: int, is_lost: int) -> None:
        if not run.is_lost:
            run.is_lost = bytearray(len(run.anchors))
        change = is_lost - run.is_lost[position]
        run.is_lost[position] = is_lost
        run.num_lost += change
        self.num_unreachable += change * run.num_free_at(position, self.run_of)
