"""What somebody outside knows of a prefix cache who hears of it only now and then: a router, say."""

from kvcache.block_pool import BlockPool
from kvcache.hashing import PrefixKeys
from kvcache.manager import KVCacheManager

__all__ = ["PrefixSnapshot"]


class PrefixSnapshot:
    """Which prefixes a manager held when `refresh` was last called; none before that.

    It asks a second manager with the same rules, which has the keys but no blocks: so what it says is what the
    manager would have said at that time, for every mix of attention types.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._memory = KVCacheManager(manager.layout, manager.settings, BlockPool(1))
        self._memory.pool.keeps_beginnings = manager.pool.keeps_beginnings

    def refresh(self) -> None:
        """Remember what the manager holds now. Costs a copy of all its keys."""
        block_of = self._manager.pool.block_of.copy()
        self._memory.pool.block_of = block_of
        for manager in self._memory.managers:
            manager.block_of = block_of

    def peek_hit(self, keys: PrefixKeys, num_tokens: int) -> int:
        """Tokens of the hit that a request of `num_tokens` prompt tokens would have had then."""
        return self._memory.peek_hit(keys, num_tokens)
