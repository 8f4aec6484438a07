"""Layers, pools and requests that are small enough to reckon by hand."""

from collections.abc import Iterable, Sequence

from kvcache.grouping import group_layers
from kvcache.hashing import PrefixKeys, hash_tokens
from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings, KVCacheManager, RequestBlocks
from kvcache.specs import ChunkedLocalSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

TOKEN_BYTES = 4
"""Of one token in one layer below: one head, one element for the key and one for the value, two bytes each."""


def full(block_size: int = 16, **more) -> FullAttentionSpec:
    return FullAttentionSpec(**{"block_size": block_size, "num_kv_heads": 1, "head_size": 1, **more})


def sliding(window: int, block_size: int = 16, **more) -> SlidingWindowSpec:
    return SlidingWindowSpec(**{"block_size": block_size, "num_kv_heads": 1, "head_size": 1, **more}, window=window)


def chunked(chunk: int, block_size: int = 16, **more) -> ChunkedLocalSpec:
    return ChunkedLocalSpec(**{"block_size": block_size, "num_kv_heads": 1, "head_size": 1, **more}, chunk=chunk)


def mamba(block_size: int, cache_mode: str = "align", page_tokens: int | None = None) -> MambaSpec:
    """A state that fills the page of `page_tokens` tokens of one attention layer."""
    elements = (page_tokens or block_size) * TOKEN_BYTES // 2
    return MambaSpec(block_size=block_size, shapes=((elements,),), dtypes=("bfloat16",), cache_mode=cache_mode)


def manager_of(*specs: KVCacheSpec, num_blocks: int = 1000, **settings) -> KVCacheManager:
    """A manager for these layers, in a pool that no start-up check has looked at.

    `settings` are those of `CacheSettings`; requests are up to 4,096 tokens long, all of them in flight.
    """
    layout = KVCacheLayout(tuple(group_layers(specs)), num_blocks, max_model_len=4096, max_in_flight_tokens=4096)
    return KVCacheManager(layout, CacheSettings(**{"block_size": specs[0].block_size, **settings}))


def request_of(manager: KVCacheManager, tokens: Sequence[int], prompt_tokens: int | None = None) -> RequestBlocks:
    """A request with these tokens, all of them its prompt unless `prompt_tokens` says otherwise."""
    keys = PrefixKeys(hash_tokens(tokens, manager.hash_unit), serial=0)
    return manager.new_request(keys, len(tokens) if prompt_tokens is None else prompt_tokens)


def hit_of(manager: KVCacheManager, tokens: Sequence[int]) -> int:
    """What a new request with these tokens would not compute."""
    return manager.find_hit(request_of(manager, tokens), len(tokens))


def serve(manager: KVCacheManager, tokens: Sequence[int], *chunk_ends: int) -> int:
    """Run a request alone from admission to its end; gives back its hit. `chunk_ends` cut its prompt."""
    request = request_of(manager, tokens)
    manager.new_step()
    computed = hit = manager.find_hit(request, len(tokens))
    first, *others = [end for end in (*chunk_ends, len(tokens)) if end > hit]
    assert manager.admit(request, hit, first)
    for computed, end in zip([first, *others], others, strict=False):
        manager.new_step()
        assert manager.extend(request, computed, end)
        manager.cache(request, end)
    manager.free(request, len(tokens))
    return hit


def hash_positions(manager: KVCacheManager, request: RequestBlocks, positions: Iterable[int], group: int = 0) -> None:
    """Let these positions of a request's tokens be cached in one group, in blocks that somebody holds.

    Blocks are one hash unit long.
    """
    positions = list(positions)
    keys, offset = request.keys.first(max(positions) + 1), key_offsets(manager)[group]
    manager.pool.hash_blocks([keys[position] + offset for position in positions], manager.pool.take(len(positions)))


def cached_positions(manager: KVCacheManager, tokens: Sequence[int]) -> list[list[int]]:
    """For each group, the positions of these tokens whose blocks can be hit. Blocks are one hash unit long."""
    keys = request_of(manager, tokens).keys.first(len(tokens) // manager.hash_unit)
    found = manager.pool.block_of
    return [[nth for nth, key in enumerate(keys) if key + offset in found] for offset in key_offsets(manager)]


def key_offsets(manager: KVCacheManager) -> list[int]:
    """For each group, what makes its keys differ from those of the others."""
    return [offset for each in manager.managers for offset in each.key_offsets]
