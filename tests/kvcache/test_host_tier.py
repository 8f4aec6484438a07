"""The host's tier of the prefix cache: what is kept, in what order it goes, and what can be resumed from."""

from zlib import crc32

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvcache.errors import KVCacheError
from kvcache.grouping import group_layers
from kvcache.host_tier import HostTier
from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings
from kvcache.policies import policy_named
from kvcache.pool_kinds import DOCUMENT
from tests.kvcache.pools import full, hit_of, mamba, request_of, serve, sliding
from tests.kvcache.test_state_machine import CONFIGURATIONS, PROGRAMS, UNTIL_A_BUG, does_nothing
from tests.kvcache.tiered_machine import TieredMachine

TOKENS = list(range(400))
OTHERS = list(range(1000, 1400))
BLOCK_BYTES = 4 * 4
"""Of four tokens in one layer."""


class AtOnce:
    """A writer whose link takes no time, but perhaps not all that is evicted at once."""

    def __init__(self) -> None:
        self.tier: HostTier
        self.most_at_once = 1000
        self.evicted_positions: list[int] = []

    def evicted(self, positions: list[int]) -> None:
        self.evicted_positions += positions
        if written := self.tier.begin_write(positions[-self.most_at_once :]):
            self.tier.end_write(written)


def tier_of(*specs, num_blocks: int, capacity_blocks: int = 10_000, **settings) -> HostTier:
    """A tier of so many blocks of one layer behind a pool of `num_blocks`."""
    layout = KVCacheLayout(tuple(group_layers(specs)), num_blocks, max_model_len=4096, max_in_flight_tokens=4096)
    writer = AtOnce()
    cache = CacheSettings(**{"block_size": specs[0].block_size, **settings})
    writer.tier = HostTier(layout, cache, capacity_blocks * BLOCK_BYTES, writer)
    return writer.tier


def resumable(tier: HostTier, tokens: list[int], most: int = 100) -> list[int]:
    """The lengths at which a new request with these tokens could resume once it has fetched what it lacks."""
    request = request_of(tier.manager, tokens)
    hit = tier.manager.find_hit(request, len(tokens))
    return [fetch.num_tokens for fetch in tier.find(request.keys, len(tokens), hit, most).fetches]


def test_a_beginning_that_was_evicted_is_still_to_be_had():
    """A pool of 20 blocks: after 18 others, of the first request's 10 one is left; nine are on the host."""
    tier = tier_of(full(4), num_blocks=21)
    serve(tier.manager, TOKENS[:40])
    serve(tier.manager, OTHERS[:76])
    assert (hit_of(tier.manager, TOKENS[:41]), resumable(tier, TOKENS[:41])) == (4, list(range(8, 41, 4)))
    assert tier.used_bytes == 9 * BLOCK_BYTES


def test_ends_go_before_beginnings():
    """Six places for ten blocks that are evicted five by five: those of the beginning stay."""
    tier = tier_of(full(4), num_blocks=21, capacity_blocks=6)
    for tokens in (TOKENS[:40], OTHERS[:60], OTHERS[100:120]):
        serve(tier.manager, tokens)
    assert (max(resumable(tier, TOKENS)), tier.num_evicted_blocks) == (24, 4)


def test_what_was_fetched_last_goes_last():
    """Two requests' blocks fill the host; the older one's were read since, so the other one's make room."""
    tier = tier_of(full(4), num_blocks=11, capacity_blocks=20)
    third = list(range(5000, 5040))
    for tokens in (TOKENS[:40], OTHERS[:40], third):
        serve(tier.manager, tokens)
    read = tier.missing(request_of(tier.manager, TOKENS[:41]).keys, 40)
    tier.pin(read)
    tier.unpin(read)
    serve(tier.manager, list(range(6000, 6040)))
    assert [bool(resumable(tier, [*tokens[:40], 0])) for tokens in (TOKENS, OTHERS, third)] == [True, False, True]


def test_a_second_eviction_costs_no_copy():
    """The same prompt again, computed again: the host has its blocks already."""
    tier = tier_of(full(4), num_blocks=11)
    for tokens in (TOKENS[:40], OTHERS[:40], TOKENS[:40], OTHERS[:40]):
        serve(tier.manager, tokens)
    assert len(tier._writer.evicted_positions) == 20


def missing_by_type(tier: HostTier, tokens: list[int]) -> tuple[int, list[int]]:
    """Tokens that a new request could have at most, and positions of each type that it would have to fetch for that."""
    keys = request_of(tier.manager, tokens).keys
    num_tokens = tier.find(keys, len(tokens), 0, most=100).fetches[-1].num_tokens
    offsets = [position % tier.manager.key_stride for position in tier.missing(keys, num_tokens)]
    return num_tokens, [offsets.count(manager.key_offsets[0]) for manager in tier.manager.managers]


def test_windows_and_full_attention_come_from_different_places():
    """Ten of full attention's fifteen blocks are evicted, then all that is left: the others, and the window."""
    tier = tier_of(full(4), sliding(8, block_size=4), num_blocks=40)
    serve(tier.manager, TOKENS[:60])
    pool = tier.manager.pool
    pool.take(pool.num_free - pool.num_cached_free + 10)
    assert missing_by_type(tier, TOKENS[:60]) == (56, [9, 0])
    pool.take(pool.num_free)
    assert missing_by_type(tier, TOKENS[:60]) == (56, [14, 2])


def test_of_states_one_is_fetched():
    """A prompt of ten blocks: all ten of full attention, and the one state at its last place to resume."""
    tier = tier_of(full(4), mamba(4), num_blocks=25)
    serve(tier.manager, TOKENS[:41], 40)
    tier.manager.pool.take(tier.manager.pool.num_free)
    num_tokens, missing = missing_by_type(tier, TOKENS[:41])
    assert (num_tokens, sorted(missing)) == (40, [1, 10])


def test_a_position_leaves_the_device_whole():
    """Two groups of windows: with the first group's block goes the second's, which is still cached."""
    tier = tier_of(full(4), *[sliding(8, block_size=4)] * 2, num_blocks=40)
    serve(tier.manager, TOKENS[:41])
    pool = tier.manager.pool
    pool.take(len(pool._unhashed) + 11)  # ten of full attention, and the first group's last block
    (position,) = [each for each in tier._writer.evicted_positions if each % 3]
    keys = tier._keys(position)
    assert ([key in pool.block_of for key in keys], tier.holds(position)) == ([False, True], True)
    assert tier.used_bytes == 12 * BLOCK_BYTES


def test_a_hole_in_a_prefix_ends_it():
    """Blocks 5 to 9 are evicted and kept; of blocks 0 to 4 the link takes the first three. So 3 and 4 are nowhere."""
    tier = tier_of(full(4), num_blocks=11)
    serve(tier.manager, TOKENS[:40])
    tier.manager.pool.take(5)
    tier._writer.most_at_once = 3
    tier.manager.pool.take(5)
    assert resumable(tier, TOKENS[:41]) == [4, 8, 12]
    tier.prefixes.pool.keeps_beginnings = True  # as if there could be no holes: then one is overlooked
    assert resumable(tier, TOKENS[:41])[-1] == 40


def test_of_many_lengths_some_are_looked_at():
    tier = tier_of(full(4), num_blocks=41)
    serve(tier.manager, TOKENS[:160])
    serve(tier.manager, OTHERS[:160])
    assert resumable(tier, TOKENS[:161], most=4) == [40, 80, 120, 160]


def test_what_is_being_read_stays():
    """There is room for ten blocks: all of them are being read, so nothing else comes in."""
    tier = tier_of(full(4), num_blocks=11, capacity_blocks=10)
    serve(tier.manager, TOKENS[:40])
    serve(tier.manager, OTHERS[:40])
    read = tier.missing(request_of(tier.manager, TOKENS[:41]).keys, 40)
    tier.pin(read)
    serve(tier.manager, list(range(6000, 6040)))
    assert (all(map(tier.holds, read)), tier.num_evicted_blocks) == (True, 0)


@pytest.mark.parametrize(
    ("layers", "grouping", "settings", "kind", "words"),
    [
        ([full(4)], "vllm", {"enable_prefix_caching": False}, None, "needs prefix caching"),
        ([full(4)], "vllm", {}, DOCUMENT, "vLLM's pool only"),
        ([full(4), mamba(4)], "two-level", {}, None, "vLLM's pool only"),
    ],
)
def test_other_pools_and_no_cache_are_refused(layers, grouping, settings, kind, words):
    policy = policy_named(grouping)
    layout = KVCacheLayout(tuple(policy.groups(layers)), 100, 96, 96, pool_kind=kind or policy.pool_kind)
    with pytest.raises(KVCacheError, match=words):
        HostTier(layout, CacheSettings(block_size=4, **settings), 1000, AtOnce())


# ---------------------------------------------------------------------------------------- random programs

MIXES = [
    "full-tight",
    "many-groups",
    "many-groups-every-16",
    "full-sliding-dense",
    "chunked-full",
    "mamba-align-dense-tight",
    "two-windows-dense-tight",
    "sliding-state-full",
    "long-blocks",
    "latent",
]


def machine_of(name, **more):
    configuration = CONFIGURATIONS[name]
    machine = type("Machine", (TieredMachine,), {"configuration": configuration, "num_calls": 0, **more})
    return seed(crc32(name.encode()))(machine)


@pytest.mark.parametrize("name", MIXES)
def test_random_programs_find_on_the_host_what_was_computed(name):
    """Whatever a request fetches has its own tokens; capacity, pins and both tiers' keys are right after each call."""
    run_state_machine_as_test(machine_of(name), settings=PROGRAMS)


def of_the_first_group_only(original):
    return lambda self, position: original(self, position)[:1]


def all_of_them(original):
    def begin_write(self, positions):
        self._busy_bytes, busy = 0, self._busy_bytes
        taken = original(self, positions)
        self._busy_bytes += busy
        return taken

    return begin_write


def or_on_its_way(original):
    return lambda self, position: original(self, position) or position in self._writing


PLANTED_BUGS = {
    "what left both tiers is still found": ("left", does_nothing, "full-tight", 12),
    "pins are forgotten": ("pin", does_nothing, "full-tight", 12),
    "too much is accepted": ("begin_write", all_of_them, "full-tight", 12),
    "what is on its way can be fetched": ("holds", or_on_its_way, "many-groups", 12),
    "only one group of a position is kept": ("_keys", of_the_first_group_only, "many-groups", 12),
}
"""By what it would be: the method, what is made of it, the mix, and how many positions the host holds."""


@pytest.mark.parametrize("bug", PLANTED_BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    name, replacement, configuration, most = PLANTED_BUGS[bug]
    monkeypatch.setattr(HostTier, name, replacement(getattr(HostTier, name)))
    # What is drawn depends on which modules are loaded, so some searches take longer than others.
    longer = settings(UNTIL_A_BUG, max_examples=4000)
    with pytest.raises((AssertionError, LookupError)):
        run_state_machine_as_test(machine_of(configuration, capacity_positions=most), settings=longer)
