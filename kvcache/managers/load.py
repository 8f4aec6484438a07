"""What a request is given whose first tokens are not computed here: their keys and values arrive from elsewhere."""

from typing import NamedTuple

__all__ = ["Load"]


class Load(NamedTuple):
    """The blocks of one attention type with which a request resumes after so many tokens."""

    positions: range
    """Those that it needs, a block in each group for each."""
    cached: list[int]
    """Those of them whose blocks are cached here already."""
    cached_blocks: list[int]
    """Their blocks, the groups' next to each other for each position."""
    counted_blocks: list[int]
    """Blocks that count as if they were taken, too: those of the hit's state, which a later one replaces."""

    @property
    def num_missing(self) -> int:
        """Positions whose contents must arrive."""
        return len(self.positions) - len(self.cached)
