"""The design document's pool: one queue of free blocks, in which those without a hash wait for their turn too.

```
reused next                                                   reused last
 [ never used ][ hashed or not, in the order in which they were freed ]
```
"""

from kvcache.block_pool import NO_ANCHORS, BlockPool
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

    def _free_unhashed(self) -> list[int]:
        """All free blocks without a hash: those never used, and those in the queue."""
        queued = [block for run in self._queue if not run.keys for block in run.blocks[run.next :]]
        return [*self._unhashed, *queued]
