"""From bytes to blocks: how many blocks a budget gives, and what a server can promise with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm

from kvcache.errors import PoolTooSmallError
from kvcache.grouping import KVCacheGroup
from kvcache.pool_kinds import ONE_SIZE, PoolKind

__all__ = [
    "KVCacheLayout",
    "block_sizes",
    "blocks_per_request",
    "fit_max_model_len",
    "plan_layout",
]

GIB = 1 << 30


@dataclass(frozen=True)
class KVCacheLayout:
    """The pool of one replica: its groups, and the blocks that they share."""

    groups: tuple[KVCacheGroup, ...]
    num_blocks: int
    """Blocks of the pool, the null block included."""
    max_model_len: int
    """Tokens of the longest request that the server accepts, prompt and output."""
    max_in_flight_tokens: int
    """Tokens that can be scheduled but not yet settled."""
    remainder_bytes: int = 0
    """Of the budget on one rank, too few for one more block."""
    pool_kind: PoolKind = ONE_SIZE
    """What the blocks are."""

    @cached_property
    def bytes_per_block(self) -> int:
        """Bytes behind one block of the pool on one rank."""
        return self.pool_kind.block_bytes(self.groups)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool on one rank."""
        return self.num_blocks * self.bytes_per_block

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` tokens that the pool holds, counting the null block, as a server prints it."""
        return self.num_blocks / self.blocks_per_request(self.max_model_len)

    def blocks_per_request(self, num_tokens: int) -> int:
        """Blocks that one request of `num_tokens` can hold at most."""
        return blocks_per_request(self.groups, num_tokens, self.max_in_flight_tokens, self.pool_kind)

    @property
    def kv_cache_tokens(self) -> int:
        """The "GPU KV cache size" that a server prints: concurrency times `max_model_len`."""
        return int(self.max_concurrency * self.max_model_len)


def blocks_per_request(
    groups: Sequence[KVCacheGroup], num_tokens: int, max_in_flight_tokens: int, pool_kind: PoolKind = ONE_SIZE
) -> int:
    """Blocks of the pool that one request of `num_tokens` can hold at most, over all groups."""
    per_group = [group.spec.max_blocks_per_request(num_tokens, max_in_flight_tokens) for group in groups]
    return sum(pool_kind.num_blocks(groups, per_group))


def plan_layout(
    groups: Sequence[KVCacheGroup],
    *,
    kv_cache_bytes: int | None = None,
    num_blocks: int | None = None,
    max_model_len: int,
    max_in_flight_tokens: int,
    pool_kind: PoolKind = ONE_SIZE,
) -> KVCacheLayout:
    """The pool for a budget of `kv_cache_bytes` on one rank, or for a stated number of blocks.

    Raises PoolTooSmallError where a server would refuse to start, because a request of
    `max_model_len` tokens would not fit beside the null block.
    """
    if not groups:
        return KVCacheLayout((), 1, max_model_len, max_in_flight_tokens)
    block_bytes = pool_kind.block_bytes(groups)
    if num_blocks is not None:
        kv_cache_bytes = num_blocks * block_bytes
    elif kv_cache_bytes is None:
        raise ValueError("either kv_cache_bytes or num_blocks is needed")
    else:
        num_blocks = kv_cache_bytes // block_bytes
    remainder = kv_cache_bytes - num_blocks * block_bytes
    layout = KVCacheLayout(tuple(groups), num_blocks, max_model_len, max_in_flight_tokens, remainder, pool_kind)
    _check_longest_request_fits(layout, kv_cache_bytes - block_bytes)
    return layout


def _check_longest_request_fits(layout: KVCacheLayout, available_bytes: int) -> None:
    if available_bytes <= 0:
        raise PoolTooSmallError("no memory is left for KV cache blocks")

    def needed_bytes(num_tokens: int) -> int:
        return layout.bytes_per_block * layout.blocks_per_request(num_tokens)

    max_model_len = layout.max_model_len
    if needed_bytes(max_model_len) <= available_bytes:
        return
    longest = _largest_true(max_model_len, lambda num_tokens: needed_bytes(num_tokens) <= available_bytes)
    advice = f"; the longest that fits is about {longest:,} tokens" if longest else ""
    raise PoolTooSmallError(
        f"a request of max_model_len {max_model_len:,} needs {_gib(needed_bytes(max_model_len))} of KV cache,"
        f" {_gib(available_bytes)} are available{advice}"
    )


def fit_max_model_len(
    groups: Sequence[KVCacheGroup],
    num_blocks: int,
    max_model_len: int,
    max_in_flight_tokens: int,
    pool_kind: PoolKind = ONE_SIZE,
) -> int:
    """The longest request, up to `max_model_len` tokens, that a pool holds beside the null block; at least 1."""
    if not groups:
        return max_model_len
    usable = num_blocks - 1

    def fits(num_tokens: int) -> bool:
        return blocks_per_request(groups, num_tokens, max_in_flight_tokens, pool_kind) <= usable

    return max(1, _largest_true(max_model_len, fits))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / (1 << 20):.2f} MiB"


def _largest_true(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1..limit for which the downward-closed `fits` holds, or 0."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def block_sizes(groups: Sequence[KVCacheGroup], block_size: int, enable_prefix_caching: bool) -> tuple[int, int]:
    """(scheduler block, hash unit) in tokens: the step in which hits are agreed on, and the one that is hashed.

    Raises KVCacheError for block sizes that no common hash unit divides.
    """
    if len(groups) <= 1:
        return block_size, block_size
    sizes = [group.spec.block_size for group in groups]
    common = lcm(*sizes)
    if not enable_prefix_caching or any(getattr(group.spec, "cache_mode", "align") != "align" for group in groups):
        return common, common
    return common, gcd(*sizes)
