"""Full attention: every token stays needed, and a prefix is hit from the left until the first miss."""

from collections.abc import Sequence

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

    def find_hit(self, keys: Sequence[int], max_tokens: int) -> int:
        """The run of cached blocks from the start."""
        num_blocks = max_tokens // self.block_size
        for position, key in enumerate(self.block_keys(keys, 0, num_blocks)):
            if not self.is_cached(key):
                num_blocks = position
                break
        return num_blocks * self.block_size // self.policy.alignment * self.policy.alignment

    def cache(self, table: BlockTable, keys: Sequence[int], num_tokens: int, prompt_tokens: int, junction: int) -> None:
        """Hash all full blocks, and the block in which the prompt's last hash unit ends."""
        super().cache(table, keys, num_tokens, prompt_tokens, junction)
        if self.units_per_block > 1:
            self._cache_prompt_tail(table, keys, num_tokens, prompt_tokens)

    def _cache_prompt_tail(self, table: BlockTable, keys: Sequence[int], num_tokens: int, prompt_tokens: int) -> None:
        """Where keys are finer than blocks, a block begun by the prompt has a key before it is full.

        Hits are whole blocks, so nothing finds it; but it counts as hashed when it is freed.
        """
        boundary = (prompt_tokens - 1) // self.policy.hash_unit * self.policy.hash_unit
        position = boundary // self.block_size
        if not 0 < boundary <= num_tokens or boundary % self.block_size == 0 or position >= self.num_blocks(table):
            return
        blocks = table.ids[position * self.num_groups : (position + 1) * self.num_groups]
        if self.pool.is_hashed(blocks[0]):
            return
        key = keys[boundary // self.policy.hash_unit - 1]
        for group, block in zip(self.groups, blocks, strict=True):
            self.pool.hash_blocks(group, [key], [block])
        table.mark_hashed(position, position + 1)
