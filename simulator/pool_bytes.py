"""Where the pool's bytes are at one moment: what holds tokens, what is wasted, what could still be hit."""

from kvcache.manager import KVCacheManager
from simulator.scheduler import Scheduler

__all__ = ["BYTE_COLUMNS", "PoolBytes"]

BYTE_COLUMNS = ("live_bytes", "empty_bytes", "padding_bytes", "cached_bytes", "free_bytes", "null_bytes")


class PoolBytes:
    """Splits the bytes of a replica's pool into parts that add up to it."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._block_bytes = manager.layout.bytes_per_block
        # Of each block of a group: what its own layers can fill. The rest is padding.
        self._content_bytes = [group.content_bytes_per_block for group in manager.layout.groups]

    def sample(self, scheduler: Scheduler) -> tuple[float, ...]:
        """Bytes in the order of `BYTE_COLUMNS`, at the end of the planned step: a look at all block tables."""
        pool, block_bytes = self._manager.pool, self._block_bytes
        contexts = list(scheduler.contexts_after_step())
        content_bytes = num_held = empty_bytes = 0
        for nth, manager in enumerate(self._manager.managers):
            tables = [(request.blocks.tables[nth], num_tokens) for request, num_tokens in contexts]
            num_empty = sum(manager.num_empty_slots(table, num_tokens) for table, num_tokens in tables)
            for position, group in enumerate(manager.groups):
                held = {block for table, _ in tables for block in table.ids[position :: manager.num_groups]}
                num_held += len(held)
                content_bytes += len(held) * self._content_bytes[group]
                empty_bytes += num_empty * self._content_bytes[group] // manager.block_size
        num_cached = pool.num_cached_free
        return (
            content_bytes - empty_bytes,
            empty_bytes,
            num_held * block_bytes - content_bytes,
            num_cached * block_bytes,
            (pool.num_free - num_cached) * block_bytes,
            block_bytes,
        )
