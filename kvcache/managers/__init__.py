"""One manager per attention type, each in its own file.

Read `base` first (block tables, taking and giving back), then `full` and `sliding` (the two rules
that most models need), then `chunked` and `mamba`.
"""

from collections.abc import Callable, Sequence

from kvcache.block_pool import BlockPool
from kvcache.grouping import KVCacheGroup, alike_runs
from kvcache.managers.base import NEVER, BlockTable, SingleTypeManager
from kvcache.managers.cache_policy import CachePolicy
from kvcache.managers.chunked import ChunkedLocalManager
from kvcache.managers.full import FullAttentionManager
from kvcache.managers.load import Load
from kvcache.managers.mamba import MambaAlignManager, MambaManager, mamba_manager
from kvcache.managers.sliding import SlidingWindowManager

__all__ = [
    "NEVER",
    "BlockTable",
    "CachePolicy",
    "ChunkedLocalManager",
    "FullAttentionManager",
    "Load",
    "MambaAlignManager",
    "MambaManager",
    "SingleTypeManager",
    "SlidingWindowManager",
    "managers_for",
]

_MANAGER_OF_KIND: dict[str, Callable[..., SingleTypeManager]] = {
    "full": FullAttentionManager,
    "mla": FullAttentionManager,
    "sliding": SlidingWindowManager,
    "chunked": ChunkedLocalManager,
    "mamba": mamba_manager,
}


def managers_for(
    groups: Sequence[KVCacheGroup], pool: BlockPool, policy: CachePolicy, max_model_len: int, max_in_flight_tokens: int
) -> tuple[SingleTypeManager, ...]:
    """One manager for each run of groups with the same spec, in the order of the groups."""
    managers: list[SingleTypeManager] = []
    first = 0
    for nth, alike in enumerate(alike_runs(groups)):
        spec, members = alike[0].spec, range(first, first + len(alike))
        most_blocks = spec.max_blocks_per_request(max_model_len, max_in_flight_tokens)
        managers.append(_MANAGER_OF_KIND[spec.kind](spec, members, pool.of_type(nth), policy, most_blocks))
        first += len(alike)
    # Full attention has by far the most keys: it comes first, for a group numbered 0 adds nothing to them.
    first = 0
    for manager in sorted(managers, key=lambda manager: manager.spec.type_key[0] != "full"):
        manager.number_keys(range(first, first + manager.num_groups))
        first += manager.num_groups
    return tuple(managers)
