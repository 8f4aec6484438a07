"""Chunked local attention: only the current chunk is needed, so every chunk's edge is a place to resume."""

from kvcache.block_pool import BlockPool
from kvcache.managers.base import SingleTypeManager
from kvcache.managers.cache_policy import CachePolicy
from kvcache.specs import ChunkedLocalSpec, cdiv

__all__ = ["ChunkedLocalManager"]


class ChunkedLocalManager(SingleTypeManager):
    """Attention within chunks of `chunk` tokens (Llama-4)."""

    gives_blocks_back = True

    def __init__(
        self, spec: ChunkedLocalSpec, groups: range, pool: BlockPool, policy: CachePolicy, max_blocks: int
    ) -> None:
        super().__init__(spec, groups, pool, policy, max_blocks)
        self.chunk = spec.chunk
        self._hit_is_passed_over = False

    def first_needed_token(self, num_computed: int) -> int:
        """The first token of the next query's chunk."""
        return num_computed // self.chunk * self.chunk

    def computed_when_unneeded(self, position: int) -> int:
        """When the chunk in which the block ends is complete."""
        return cdiv((position + 1) * self.block_size, self.chunk) * self.chunk

    def find_hit(self, keys: list[int], max_tokens: int) -> int:
        """Everything before the current chunk for nothing, then the run of cached blocks within it."""
        chunk_start = self.first_needed_token(max_tokens)
        self._hit_is_passed_over = False
        first = chunk_start // self.block_size
        last = max_tokens // self.block_size
        if chunk_start % self.block_size == 0:
            return self.first_missing(keys, first, last) * self.block_size
        # A block that belongs to two chunks may be missing where the next ones are not: a request that
        # resumed after it passed it over. And a hit that ends with what is passed over holds no block.
        position = next(
            (at for at in range(first, last) if not self.is_cached(self.block_keys(keys, at, at + 1)[0])), last
        )
        self._hit_is_passed_over = position * self.block_size < chunk_start
        return position * self.block_size

    def hit_blocks(self, keys: list[int], hit_tokens: int) -> list[int]:
        """Ids of the cached blocks of the current chunk, for the hit that `find_hit` found last."""
        return [] if self._hit_is_passed_over else super().hit_blocks(keys, hit_tokens)
