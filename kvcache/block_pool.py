"""The block pool: which blocks are free, in what order they are reused, and which hash finds which block.

```
reused next                                                        reused last
 [ stack of unhashed blocks, last freed first ][ queue of hashed blocks, LRU ]
```

A block without a hash holds nothing that anyone could want again, so it goes back on top of the
stack; a hashed one goes to the end of the queue and can be hit until its turn comes (vLLM since
0.2x; the design document sent both to the end). Block ids are plain ints.
"""

from collections import deque
from collections.abc import Sequence

from kvcache.errors import InvariantError

__all__ = ["NULL_BLOCK", "BlockPool", "PrefixMap"]

NULL_BLOCK = 0
"""Stands in block tables for positions that are no longer needed. Never free, never hashed."""

PrefixMap = dict[int, int]
"""Prefix key to block id, for one KV cache group."""


class BlockPool:
    """`num_blocks` blocks, one of them the null block, and a map from prefix key to block for each group."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least the null block, got {num_blocks} blocks")
        self.num_blocks = num_blocks
        self.prefix_maps: tuple[PrefixMap, ...] = tuple({} for _ in range(num_groups))
        self.num_evictions = 0
        self._unhashed = list(range(num_blocks - 1, 0, -1))
        # Touched blocks stay in the queue as stale entries: an entry counts only if the block still
        # remembers its place. Places are counted from the first entry ever queued.
        self._hashed: deque[int] = deque()
        self._next_place = 0
        self._num_hashed_free = 0
        self._place: list[int] = [-1] * num_blocks
        self._hash: list[tuple[int, int] | None] = [None] * num_blocks  # (group, key)
        # How many requests hold a hashed block; an unhashed block in use has exactly one holder.
        self._num_holders = [1] * num_blocks
        # All blocks of a key that is cached more than once, first cached first.
        self._copies: dict[tuple[int, int], list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken: unhashed ones, and hashed ones that nobody holds."""
        return len(self._unhashed) + self._num_hashed_free

    @property
    def num_cached_free(self) -> int:
        """Free blocks that can still be hit."""
        return self._num_hashed_free

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1; cached blocks that nobody holds count as free."""
        usable = self.num_blocks - 1
        return 1.0 - self.num_free / usable if usable else 0.0

    def take(self, num_blocks: int) -> list[int]:
        """The next `num_blocks` free blocks in the order of reuse; hashed ones lose their hash."""
        unhashed = self._unhashed
        from_stack = min(num_blocks, len(unhashed))
        if not from_stack:
            return self._evict(num_blocks)
        taken = unhashed[-from_stack:]
        taken.reverse()
        del unhashed[-from_stack:]
        if from_stack < num_blocks:
            taken += self._evict(num_blocks - from_stack)
        return taken

    def _evict(self, num_blocks: int) -> list[int]:
        if num_blocks > self._num_hashed_free:
            raise InvariantError(
                f"no-overdraft: {num_blocks} blocks asked of the queue, {self._num_hashed_free} are free"
            )
        evicted: list[int] = []
        queue, places = self._hashed, self._place
        place = self._next_place - len(queue)
        while len(evicted) < num_blocks:
            block = queue.popleft()
            if places[block] == place:
                places[block] = -1
                self._num_holders[block] = 1
                evicted.append(block)
            place += 1
        self._num_hashed_free -= num_blocks
        self.num_evictions += num_blocks
        for block in evicted:
            self._forget(block)
        return evicted

    def _forget(self, block: int) -> None:
        """Take a block out of the prefix map."""
        entry = self._hash[block]
        assert entry is not None
        group, key = entry
        self._hash[block] = None
        copies = self._copies.get(entry) if self._copies else None
        if copies is None:
            del self.prefix_maps[group][key]
            return
        copies.remove(block)
        self.prefix_maps[group][key] = copies[0]
        if len(copies) == 1:
            del self._copies[entry]

    def put_unhashed(self, blocks: Sequence[int]) -> None:
        """Give back blocks without a hash; the last of them is reused first."""
        self._unhashed.extend(blocks)

    def put_hashed(self, blocks: Sequence[int]) -> None:
        """Drop one holder of each; those without any left queue up in this order."""
        num_holders, queue, places = self._num_holders, self._hashed, self._place
        place = self._next_place
        for block in blocks:
            num_holders[block] -= 1
            if not num_holders[block]:
                places[block] = place
                place += 1
                queue.append(block)
        self._num_hashed_free += place - self._next_place
        self._next_place = place

    def touch(self, blocks: Sequence[int]) -> None:
        """Add a holder to each hashed block: free ones leave the queue."""
        num_holders, places = self._num_holders, self._place
        for block in blocks:
            if not num_holders[block]:
                places[block] = -1
                self._num_hashed_free -= 1
            num_holders[block] += 1

    def num_free_among(self, blocks: Sequence[int]) -> int:
        """How many of these hashed blocks nobody holds."""
        num_holders = self._num_holders
        return [num_holders[block] for block in blocks].count(0)

    def hash_blocks(self, group: int, keys: Sequence[int], blocks: Sequence[int]) -> None:
        """Let each prefix key of a group find its block from now on; a block's earlier key is dropped."""
        prefixes = self.prefix_maps[group]
        for key, block in zip(keys, blocks, strict=True):
            if self._hash[block] is not None:
                self._forget(block)
            self._hash[block] = entry = (group, key)
            first = prefixes.setdefault(key, block)
            if first != block:
                self._copies.setdefault(entry, [first]).append(block)

    def is_hashed(self, block: int) -> bool:
        """Whether a prefix key finds the block."""
        return self._hash[block] is not None

    def check_integrity(self, holders: dict[int, int]) -> None:
        """Raise InvariantError if the pool contradicts itself or the block tables.

        `holders` counts for each block in how many block tables it stands.

        conservation: every block but the null block is either free or held, exactly once.
        reference-counts: a hashed block has as many holders as there are tables that name it.
        live-hashes: the prefix maps name exactly the hashed blocks, under their own keys.
        """
        queued = self._queued_blocks()
        free = [*self._unhashed, *queued]
        if len(set(free)) != len(free) or len(queued) != self._num_hashed_free:
            raise InvariantError("conservation: a block is free twice, or the count of free blocks is wrong")
        if set(free) | set(holders) != set(range(1, self.num_blocks)) or set(free) & set(holders):
            raise InvariantError("conservation: a block is lost, or both free and held")
        for block, num_holders in holders.items():
            if num_holders != self._num_holders[block] or (num_holders > 1 and self._hash[block] is None):
                raise InvariantError(f"reference-counts: block {block} stands in {num_holders} tables")
        self._check_hashes(queued)

    def _queued_blocks(self) -> list[int]:
        first = self._next_place - len(self._hashed)
        return [block for place, block in enumerate(self._hashed, first) if self._place[block] == place]

    def _check_hashes(self, queued: list[int]) -> None:
        if any(self._hash[block] is not None for block in self._unhashed):
            raise InvariantError("live-hashes: a block in the stack has a hash")
        if any(self._hash[block] is None or self._num_holders[block] for block in queued):
            raise InvariantError("live-hashes: a block in the queue has no hash, or a holder")
        hashed = {block for block in range(self.num_blocks) if self._hash[block] is not None}
        found = {block for prefixes in self.prefix_maps for block in prefixes.values()}
        copies = {block for blocks in self._copies.values() for block in blocks}
        if found | copies != hashed or NULL_BLOCK in hashed:
            raise InvariantError("live-hashes: the prefix maps and the blocks' own hashes differ")
        for group, prefixes in enumerate(self.prefix_maps):
            if any(self._hash[block] != (group, key) for key, block in prefixes.items()):
                raise InvariantError("live-hashes: a key finds a block with another key")
