"""The design document's pool: one queue of free blocks, in which those without a hash wait for their turn too.

```
reused next                                                   reused last
 [ never used ][ hashed or not, in the order in which they were freed ]
```
"""

from collections.abc import Iterable, Sequence

from kvcache.block_pool import NO_ANCHORS, BlockPool, Place
from kvcache.tally import Run, Tally

__all__ = ["DocumentPool"]


class DocumentPool(BlockPool):
    """Every block that is given back goes to the end of the queue."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._unhashed_tally = Tally(1)
        """Counts the blocks without a hash that are in the queue."""

    @property
    def num_cached_free(self) -> int:
        """Free blocks that can still be hit."""
        return self._num_queued - self._unhashed_tally.num_cached

    def put_unhashed(self, blocks: list[int]) -> None:
        """Give back blocks without a hash, the last of a request first, as hashed ones are."""
        if blocks:
            in_order = blocks[::-1]
            self._queue.append(Run([], in_order, self._unhashed_tally, NO_ANCHORS))
            self._unhashed_tally.num_cached += len(in_order)
            self._num_queued += len(in_order)

    def check_integrity(self, places: Iterable[Sequence[Place]]) -> None:
        """As in every pool (`BlockPool.check_integrity`)."""
        held = [place for of_type in places for place in of_type]
        unhashed = [block for run in self._queue if not run.keys for block in run.blocks[run.next :]]
        queued = self._queued()
        all_blocks = set(range(1, self.num_blocks))
        self._check_conservation([*self._unhashed, *unhashed], queued, {block for _, block in held}, all_blocks)
        self._check_holders(held)
        self._check_hashes([queued], [held], [self._copies])
