"""What somebody outside knows of a prefix cache who hears of it only now and then: a router, say."""

from kvcache.hashing import PrefixKeys
from kvcache.key_journal import KeyJournal
from kvcache.manager import KVCacheManager

__all__ = ["PrefixSnapshot"]


class PrefixSnapshot:
    """Which prefixes a manager held when `refresh` was last called; none before that.

    It asks a second manager with the same rules, which has the keys but no blocks: so what it says is what the
    manager would have said at that time, for every mix of attention types, to a request that was never there. (What
    only one request has, such as its own output, is not copied: that one alone could ask for it.)
    """

    def __init__(self, manager: KVCacheManager) -> None:
        layout = manager.layout
        self._journal = KeyJournal(manager.pool.block_of)
        manager.pool.add_journal(self._journal)
        self._memory = KVCacheManager(layout, manager.settings, layout.pool_kind.new_pool(layout.groups, num_blocks=1))
        self._memory.pool.keeps_beginnings = manager.pool.keeps_beginnings

    def refresh(self) -> None:
        """Remember what the manager holds now. Costs what has changed since, at most a copy of its map."""
        self._journal.bring_up_to_date(self._memory.pool.block_of)

    def peek_hit(self, keys: PrefixKeys, num_tokens: int) -> int:
        """Tokens of the hit that a request of `num_tokens` prompt tokens would have had then."""
        return self._memory.peek_hit(keys, num_tokens)
