"""Kinds of pools: what a block is, what a request takes of them, and who hands them out.

A grouping decides which layers share a block table; the kind of pool decides where the blocks of those
tables come from. The coordinator, the managers and the scheduler are the same for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import ClassVar

from kvcache.block_pool import BlockPool
from kvcache.document_pool import DocumentPool
from kvcache.grouping import KVCacheGroup, alike_runs
from kvcache.specs import cdiv
from kvcache.two_level_pool import TwoLevelPool

__all__ = ["DOCUMENT", "ONE_SIZE", "TWO_LEVELS", "PoolKind"]


@dataclass(frozen=True)
class PoolKind:
    """vLLM's: blocks of equal bytes, whichever group owns them."""

    is_one_size: ClassVar[bool] = True

    def block_bytes(self, groups: Sequence[KVCacheGroup]) -> int:
        """Bytes behind one block of the pool on one rank: what the largest group needs."""
        return max(group.bytes_per_block for group in groups)

    def table_block_bytes(self, group: KVCacheGroup, groups: Sequence[KVCacheGroup]) -> int:
        """Bytes behind one block of a group's tables."""
        return self.block_bytes(groups)

    def num_blocks(self, groups: Sequence[KVCacheGroup], per_group: Sequence[int]) -> list[int]:
        """Blocks of the pool behind so many blocks of each group's table, for one request."""
        return list(per_group)

    def new_pool(self, groups: Sequence[KVCacheGroup], num_blocks: int) -> BlockPool:
        """An empty pool of `num_blocks`, the null block included."""
        return BlockPool(num_blocks)


@dataclass(frozen=True)
class DocumentPoolKind(PoolKind):
    """The design document's: as vLLM's, but every free block waits for its turn, hashed or not."""

    def new_pool(self, groups: Sequence[KVCacheGroup], num_blocks: int) -> BlockPool:
        """An empty pool with one queue."""
        return DocumentPool(num_blocks)


@dataclass(frozen=True)
class TwoLevelPoolKind(PoolKind):
    """Jenga's: large pages that are split into small ones, which are blocks of one group's tables."""

    is_one_size = False

    def block_bytes(self, groups: Sequence[KVCacheGroup]) -> int:
        """Of a large page: the least common multiple of all small ones."""
        return lcm(*(group.bytes_per_block for group in groups))

    def table_block_bytes(self, group: KVCacheGroup, groups: Sequence[KVCacheGroup]) -> int:
        """Of a small page."""
        return group.bytes_per_block

    def num_blocks(self, groups: Sequence[KVCacheGroup], per_group: Sequence[int]) -> list[int]:
        """Whole large pages of each group."""
        large = self.block_bytes(groups)
        return [cdiv(number * group.bytes_per_block, large) for group, number in zip(groups, per_group, strict=True)]

    def new_pool(self, groups: Sequence[KVCacheGroup], num_blocks: int) -> BlockPool:
        """An empty pool of so many large pages."""
        large = self.block_bytes(groups)
        return TwoLevelPool(num_blocks, [large // alike[0].bytes_per_block for alike in alike_runs(groups)])


ONE_SIZE = PoolKind()
DOCUMENT = DocumentPoolKind()
TWO_LEVELS = TwoLevelPoolKind()
