"""A manager that says what it does, and a pool that notes what becomes of some keys: to explain one request's life.

Both do exactly what their plain twins do. A witness hears of it while it happens, so that it can look at
the pool as it is at that moment; what happened to which request is all that it is told.
"""

from typing import NamedTuple, Protocol

from kvcache.block_pool import BlockPool
from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings, KVCacheManager, RequestBlocks

__all__ = ["Shortage", "WatchedManager", "WatchedPool", "Witness"]


class Shortage(NamedTuple):
    """Why a request got no blocks."""

    needed_blocks: int
    """To be taken, those of the hit that nobody holds included."""
    free_blocks: int
    watermark_blocks: int = 0
    """Of the free blocks, those that must stay free."""
    hit_blocks: int = 0
    """Of the needed blocks, those of the hit: free, but they can be hit."""
    reserve_tokens: int = 0
    """If not 0: room was asked for so many tokens, not only for those of the next step."""
    awaits_state: bool = False
    """It is not blocks that are short: the hit ends with a Mamba state that this very step writes."""


class Witness(Protocol):
    """Who is told what the manager does, and for whom."""

    def hashed(self, keys: list[int], by: RequestBlocks) -> None:
        """Watched keys find a block from now on, and did not before: the tokens are `by`'s."""

    def lost(self, keys: list[int], by: RequestBlocks) -> None:
        """Watched keys find no block any more: `by` took them."""

    def computed(self, num_tokens: int, by: RequestBlocks) -> None:
        """The first `num_tokens` of `by` are there once the step that is being planned has run."""

    def admitting(self, blocks: RequestBlocks, hit_tokens: int) -> None:
        """A request is being admitted with this hit; nothing has been taken for it yet."""

    def refused(self, blocks: RequestBlocks, shortage: Shortage) -> None:
        """A waiting request was not admitted."""

    def ran_short(self, blocks: RequestBlocks, shortage: Shortage) -> None:
        """A running request got no further slots."""

    def freed(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """A request gave back all blocks, with `num_tokens` computed."""


class WatchedPool(BlockPool):
    """A pool that notes when watched keys begin and cease to find a block."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.watched: set[int] = set()
        self.hashed: list[int] = []
        """Watched keys that found no block before. Whoever reads them clears them."""
        self.lost: list[int] = []
        """Watched keys whose last block was taken."""

    def hash_blocks(self, keys: list[int], blocks: list[int], is_anchor: bool = False) -> None:
        """Let each key find its block from now on, and note those that found none."""
        if not self.watched.isdisjoint(keys):
            self.hashed += [key for key in keys if key in self.watched and key not in self.block_of]
        super().hash_blocks(keys, blocks, is_anchor)

    def _forget(self, keys: list[int], blocks: list[int], is_anchor: bool) -> None:
        super()._forget(keys, blocks, is_anchor)
        if not self.watched.isdisjoint(keys):
            self.lost += [key for key in keys if key in self.watched and key not in self.block_of]


class WatchedManager(KVCacheManager):
    """A manager that tells a witness."""

    def __init__(self, layout: KVCacheLayout, settings: CacheSettings) -> None:
        """Nobody is told anything until `watch` is called."""
        pool = WatchedPool(layout.num_blocks)
        super().__init__(layout, settings, pool)
        self._watched_pool = pool
        self._witness: Witness | None = None

    def watch(self, blocks: RequestBlocks, max_tokens: int, witness: Witness) -> None:
        """Tell `witness` from now on; the keys of the first `max_tokens` of a request are watched in every group."""
        keys = blocks.keys.first(max_tokens // self.hash_unit)[: max_tokens // self.hash_unit]
        self._watched_pool.watched = {key + group for key in keys for group in range(len(self.layout.groups))}
        self._witness = witness

    def _start(self, blocks: RequestBlocks, hits: list[list[int]], hit_tokens: int, num_tokens: int) -> None:
        if self._witness is not None:
            self._witness.admitting(blocks, hit_tokens)
        super()._start(blocks, hits, hit_tokens, num_tokens)

    def admit(
        self, blocks: RequestBlocks, hit_tokens: int, num_tokens: int, *, reserve_tokens: int = 0, alone: bool = False
    ) -> bool:
        """Admit, and say why not."""
        if super().admit(blocks, hit_tokens, num_tokens, reserve_tokens=reserve_tokens, alone=alone):
            return True
        if self._witness is not None:
            awaits_state = not self.can_read(blocks, hit_tokens)
            needed = sum(self._needs(hit_tokens, num_tokens, reserve_tokens))
            hit_blocks = self._num_free_of_hit(blocks, hit_tokens)
            watermark = 0 if alone else self.watermark_blocks
            shortage = Shortage(
                needed + hit_blocks, self.pool.num_free, watermark, hit_blocks, reserve_tokens, awaits_state
            )
            self._witness.refused(blocks, shortage)
        return False

    def _num_free_of_hit(self, blocks: RequestBlocks, hit_tokens: int) -> int:
        if not hit_tokens:
            return 0
        keys = blocks.keys.first(hit_tokens // self.hash_unit)
        return sum(self.pool.num_free_among(manager.hit_blocks(keys, hit_tokens)) for manager in self.managers)

    def extend(self, blocks: RequestBlocks, num_processed: int, num_tokens: int) -> bool:
        """Extend, and say what was short."""
        is_extended = super().extend(blocks, num_processed, num_tokens)
        self._tell(blocks)
        if not is_extended:
            self._tell_shortage(blocks, num_tokens)
        return is_extended

    def extend_by_one(self, blocks: RequestBlocks, num_processed: int, num_tokens: int, num_cacheable: int) -> bool:
        """Extend a decoding request, and say what was short."""
        is_extended = super().extend_by_one(blocks, num_processed, num_tokens, num_cacheable)
        self._tell(blocks)
        if not is_extended:
            self._tell_shortage(blocks, num_tokens)
        return is_extended

    def only_grows(self, blocks: RequestBlocks, num_tokens: int) -> bool:
        """Never: blocks that are taken at once for several requests do not say who took which."""
        return False

    def cache(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """Hash, and say how far the request is."""
        super().cache(blocks, num_tokens)
        self._tell(blocks)
        if self._witness is not None:
            self._witness.computed(num_tokens, blocks)

    def free(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """Take back all blocks, and say so."""
        super().free(blocks, num_tokens)
        self._tell(blocks)
        if self._witness is not None:
            self._witness.freed(blocks, num_tokens)

    def _tell(self, by: RequestBlocks) -> None:
        """Hand on what the pool has noted. A verb takes blocks before it hashes any."""
        pool, witness = self._watched_pool, self._witness
        if witness is None:
            return
        if pool.lost:
            witness.lost(pool.lost, by)
            pool.lost = []
        if pool.hashed:
            witness.hashed(pool.hashed, by)
            pool.hashed = []

    def _tell_shortage(self, blocks: RequestBlocks, num_tokens: int) -> None:
        if self._witness is not None:
            needed = sum(table.manager.num_new_blocks(table, num_tokens) for table in blocks.tables)
            self._witness.ran_short(blocks, Shortage(needed, self.pool.num_free))
