"""Full attention: every token stays needed, and a prefix is hit from the left until the first miss."""

from collections.abc import Sequence

from kvcache.hashing import PrefixKeys
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
        hit_tokens = self.first_missing(keys, 0, max_tokens // self.block_size) * self.block_size
        return hit_tokens // self.policy.alignment * self.policy.alignment

    # Where keys are finer than blocks, the block in which the prompt's last hash unit ends has a key
    # before it is full. Hits are whole blocks, so nothing finds it; but it counts as hashed when it is freed.

    def new_table(self, keys: PrefixKeys, prompt_tokens: int) -> BlockTable:
        """An empty table for one request."""
        table = BlockTable if self.units_per_block == 1 else _TailTable
        return table(self, keys, prompt_tokens)

    # A block whose key no other request can have is hashed when it is given back, all at once: until
    # then nobody could hit it.

    def cache(self, table: BlockTable, num_tokens: int, junction: int) -> None:
        """Hash all full blocks that others may hit, and the block in which the prompt's last hash unit ends."""
        self._cache_up_to(table, min(num_tokens // self.block_size, self._shared_end(table)), num_tokens)

    def next_to_cache(self, table: BlockTable, junction: int) -> int:
        """The next full block that others may hit."""
        if isinstance(table, _TailTable) and table.tail is None and not table.tail_is_done:
            return table.prompt_tokens - 1
        return (table.num_cached + 1) * self.block_size if table.num_cached < self._shared_end(table) else NEVER

    def _shared_end(self, table: BlockTable) -> int:
        """The first position whose key is the request's own."""
        return table.keys.num_shared // self.units_per_block

    def _cache_up_to(self, table: BlockTable, end: int, num_tokens: int) -> None:
        if not isinstance(table, _TailTable):
            if end > table.num_cached:
                self._hash(table, table.num_cached, end)
                table.num_cached = end
            return
        tail = table.tail
        if tail is not None and tail < end:
            key = self._tail_key(table)
            for nth, offset in enumerate(self.key_offsets):  # it is full now, and gets the key of a full block
                self.pool.unhash_held(key + offset, table.ids[tail * self.num_groups + nth])
            table.tail = None
            table.tail_is_done = True
        if end > table.num_cached:
            self._hash(table, table.num_cached, end)
            table.num_cached = end
        self._cache_tail(table, num_tokens)

    def _tail_key(self, table: BlockTable) -> int:
        num_units = (table.prompt_tokens - 1) // self.policy.hash_unit
        return table.keys.first(num_units)[num_units - 1]

    def _cache_tail(self, table: "_TailTable", num_tokens: int) -> None:
        boundary = (table.prompt_tokens - 1) // self.policy.hash_unit * self.policy.hash_unit
        position = boundary // self.block_size
        if table.tail_is_done or table.tail is not None or position < table.num_cached:
            return
        if not 0 < boundary <= num_tokens or boundary % self.block_size == 0 or boundary >= table.num_slots:
            return
        key = self._tail_key(table)
        blocks = table.ids[position * self.num_groups : (position + 1) * self.num_groups]
        self.pool.hash_blocks([key + offset for offset in self.key_offsets], blocks)
        table.tail = position
        table.mark_hashed(position, position + 1)

    def held_keys(self, table: BlockTable, start: int, stop: int) -> Sequence[int]:
        """The keys under which the hashed blocks at positions `start` to `stop` are found."""
        keys = super().held_keys(table, start, stop)
        if isinstance(table, _TailTable) and table.tail is not None and start <= table.tail < stop:
            keys = [*keys]
            keys[table.tail - start] = self._tail_key(table)
        return keys

    def free(self, table: BlockTable, num_tokens: int) -> None:
        """Hash what was put off, then give back all blocks, so that the beginning of the request is reused last."""
        end = num_tokens // self.block_size
        if end > table.num_cached:
            self._cache_up_to(table, end, num_tokens)
        super().free(table, num_tokens)
        if isinstance(table, _TailTable):
            table.tail = None
            table.tail_is_done = False


class _TailTable(BlockTable):
    """A table whose last prompt block may have a key before it is full."""

    __slots__ = ("tail", "tail_is_done")

    def __init__(self, manager: SingleTypeManager, keys: PrefixKeys, prompt_tokens: int) -> None:
        super().__init__(manager, keys, prompt_tokens)
        self.tail: int | None = None
        """Position of the block that has such a key now."""
        self.tail_is_done = False
        """The block has become full, or no such block will be."""
