"""Full attention: every token stays needed, and a prefix is hit from the left until the first miss."""

from kvcache.errors import KVCacheError
from kvcache.managers.base import NEVER, BlockTable, SingleTypeManager

__all__ = ["FullAttentionManager"]


class FullAttentionManager(SingleTypeManager):
    """Full and latent (MLA) attention."""

    def first_needed_token(self, num_computed: int) -> int:
        """Always the first."""
        return 0

    def computed_when_unneeded(self, position: int) -> int:
        """Never before the request ends."""
        return NEVER

    def find_hit(self, keys: list[int], max_tokens: int) -> int:
        """The run of cached blocks from the start."""
        hit_tokens = self.first_missing(keys, 0, max_tokens // self.block_size) * self.block_size
        return hit_tokens // self.policy.alignment * self.policy.alignment

    def cached_among(self, keys: list[int], start: int, end: int) -> list[int]:
        """The positions from `start` to `end` whose blocks are cached: those before the first that is not."""
        return list(range(start, self.first_missing(keys, start, end)))

    def hit_blocks(self, keys: list[int], hit_tokens: int) -> list[int]:
        """Ids of the cached blocks of a hit.

        Raises KVCacheError where keys contradict each other: a block is cached, one before it never was.
        """
        try:
            return super().hit_blocks(keys, hit_tokens)
        except KeyError:
            raise KVCacheError(
                "a prefix is cached without its beginning: prefix ids must name whole prefixes"
            ) from None

    # A block whose key no other request can have is hashed when it is given back, all at once: until
    # then nobody could hit it. Not so once the request was preempted: what it left behind may need it.

    def cache(self, table: BlockTable, num_tokens: int, junction: int) -> None:
        """Hash all full blocks that others may hit."""
        self._cache_up_to(table, min(num_tokens // self.block_size, self._shared_end(table)))

    def next_to_cache(self, table: BlockTable, junction: int) -> int:
        """The next full block that others may hit."""
        return (table.num_cached + 1) * self.block_size if table.num_cached < self._shared_end(table) else NEVER

    def free(self, table: BlockTable, num_tokens: int) -> None:
        """Hash what was put off, then give back all blocks, so that the beginning of the request is reused last."""
        self._cache_up_to(table, num_tokens // self.block_size)
        super().free(table, num_tokens)
        table.was_freed = True

    def _shared_end(self, table: BlockTable) -> int:
        """The first position whose key can wait."""
        if table.was_freed:
            return NEVER
        return table.keys.num_shared // self.units_per_block

    def _cache_up_to(self, table: BlockTable, end: int) -> None:
        if end > table.num_cached:
            self._hash(table, table.num_cached, end)
            table.num_cached = end
