"""Random programs against every kind of pool, and planted bugs that they must find."""

from zlib import crc32

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvcache.block_pool import BlockPool
from kvcache.manager import CacheSettings, KVCacheManager
from kvcache.managers import (
    ChunkedLocalManager,
    FullAttentionManager,
    MambaAlignManager,
    SingleTypeManager,
    SlidingWindowManager,
)
from kvcache.managers.mamba import MambaManager
from kvcache.specs import MLASpec
from tests.kvcache.machine import Configuration, PoolMachine
from tests.kvcache.pools import chunked, full, mamba, sliding

DENSE = CacheSettings(block_size=4, prefix_cache_retention_interval=None)
EVERY_16 = CacheSettings(block_size=4, prefix_cache_retention_interval=16)
NO_CACHE = CacheSettings(block_size=4, enable_prefix_caching=False)
LEAVES_A_FIFTH = CacheSettings(block_size=4, watermark=0.2)

FULL, SLIDING, CHUNKED = full(4), sliding(10, 4), chunked(16, 4)
HALF = full(4, head_size=1, head_size_v=0)
"""Half the bytes of a token: its blocks are twice as long."""
STATE, ONE_STATE = mamba(4), mamba(96, "none", page_tokens=4)

CONFIGURATIONS = {
    configuration.name: configuration
    for configuration in (
        Configuration("full", (FULL,) * 2, 60),
        Configuration("full-tight", (FULL,) * 2, 14, max_model_len=48),
        Configuration("sliding", (SLIDING,) * 2, 40),
        Configuration("sliding-dense-tight", (sliding(9, 4),) * 2, 14, settings=DENSE),
        Configuration("many-groups", (*[SLIDING] * 5, FULL) * 2, 90),
        Configuration("many-groups-every-16", (*[SLIDING] * 3, FULL) * 2, 70, settings=EVERY_16),
        Configuration("full-sliding-dense", (SLIDING, FULL), 60, settings=DENSE),
        Configuration("chunked", (chunked(24, 4),) * 2, 24),
        Configuration("chunked-full", (CHUNKED, CHUNKED, CHUNKED, FULL), 64),
        Configuration("mamba-align", (STATE, STATE, FULL), 60),
        Configuration("mamba-align-every-16", (STATE, STATE, FULL), 40, settings=EVERY_16),
        Configuration("mamba-align-dense-tight", (STATE, STATE, FULL), 30, settings=DENSE),
        Configuration("mamba-none", (ONE_STATE, ONE_STATE, FULL), 30, settings=NO_CACHE),
        Configuration("two-windows", (SLIDING, sliding(21, 4), FULL), 80),
        Configuration("two-windows-dense-tight", (SLIDING, sliding(21, 4), FULL), 52, settings=DENSE),
        Configuration("sliding-state-full", (SLIDING, STATE, FULL), 50, settings=EVERY_16),
        Configuration("chunked-sliding-full", (CHUNKED, SLIDING, FULL), 60),
        Configuration("chunked-sliding", (CHUNKED, SLIDING), 30),
        Configuration("long-blocks", (HALF, SLIDING, SLIDING), 50),
        Configuration("long-windows-dense", (sliding(10, 4, head_size_v=0), FULL), 40, settings=DENSE),
        Configuration("latent", (MLASpec(block_size=4, head_size=2), FULL, SLIDING), 64),
        Configuration("blocks-of-one-token", (sliding(4, 1), full(1)), 80, max_model_len=40, settings=DENSE),
        Configuration("no-cache", (SLIDING, SLIDING, FULL), 60, settings=NO_CACHE),
        Configuration("no-cache-three-types", (ONE_STATE, SLIDING, FULL), 45, settings=NO_CACHE),
        Configuration("watermark", (SLIDING, FULL), 50, settings=LEAVES_A_FIFTH),
    )
}
CALLS = 20_000
PROGRAMS = settings(max_examples=25, stateful_step_count=60, derandomize=True, database=None, deadline=None)
UNTIL_A_BUG = settings(PROGRAMS, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)


def machine_of(configuration):
    """A machine for one configuration, which draws the same programs in every run."""
    machine = type("Machine", (PoolMachine,), {"configuration": configuration, "num_calls": 0})
    return seed(crc32(configuration.name.encode()))(machine)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_random_programs_keep_the_invariants(name):
    """Together the configurations see at least 20,000 calls, each its share, with all invariants asked after each."""
    machine = machine_of(CONFIGURATIONS[name])
    run_state_machine_as_test(machine, settings=PROGRAMS)
    assert machine.num_calls >= CALLS / len(CONFIGURATIONS)


# ------------------------------------------------------------------------------- the invariants have teeth


def loses_a_block(original):
    return lambda self, blocks: original(self, blocks[1:])


def frees_twice(original):
    return lambda self, blocks: original(self, [*blocks, *blocks])


def one_more(original):
    return lambda *arguments: original(*arguments) + 1


def one_block_more(original):
    return lambda self, *arguments: original(self, *arguments) + self.block_size


def does_nothing(original):
    return lambda *arguments: None


def says(answer):
    return lambda original: lambda *arguments: answer


def needs_one_block_less(original):
    def start(self, *arguments):
        original(self, *arguments)
        self.blocks_for_hit -= 1

    return start


def goes_beyond_the_first_miss(original):
    def find_hit(self, keys, max_tokens):
        hit = original(self, keys, max_tokens)
        return min(hit + self.policy.alignment, max_tokens // self.policy.alignment * self.policy.alignment)

    return find_hit


def the_last_chunk_is_never_cached(original):
    return lambda self, blocks, num_tokens: original(self, blocks, num_tokens - self.scheduler_block)


def only_the_last_group(original):
    return lambda self, key: key + self.key_offsets[-1] in self.block_of


PLANTED_BUGS = {
    "a block is lost when it is freed": (BlockPool, "put_unhashed", loses_a_block, "no-cache"),
    "a block is freed twice": (BlockPool, "put_unhashed", frees_twice, "no-cache"),
    "an evicted block keeps its hash": (BlockPool, "_forget", does_nothing, "full-tight"),
    "a hit leaves its blocks in the free queue": (BlockPool, "touch", does_nothing, "full"),
    "free blocks of a hit count as room": (BlockPool, "num_free_among", says(0), "full-tight"),
    "a window is freed one token too early": (SlidingWindowManager, "first_needed_token", one_more, "sliding"),
    "a chunk is freed one block too early": (ChunkedLocalManager, "first_needed_token", one_block_more, "chunked-full"),
    "a state is freed one step too early": (MambaAlignManager, "first_hit_position", one_more, "mamba-align"),
    "nothing is ever freed from a window": (SlidingWindowManager, "free_unneeded", does_nothing, "many-groups"),
    "a window of one block less is a hit": (SlidingWindowManager, "__init__", needs_one_block_less, "sliding"),
    "a hit goes beyond the first miss": (FullAttentionManager, "find_hit", goes_beyond_the_first_miss, "full"),
    "a hit is sought in one group only": (SingleTypeManager, "is_cached", only_the_last_group, "many-groups"),
    "a state is read in the step that writes it": (MambaManager, "may_take_hit", says(True), "mamba-align-dense-tight"),
    "the end of a prompt is never cached": (
        KVCacheManager,
        "cache",
        the_last_chunk_is_never_cached,
        "full-sliding-dense",
    ),
    "the next event is seen one step late": (KVCacheManager, "next_event", one_more, "full-sliding-dense"),
}


@pytest.mark.parametrize("bug", PLANTED_BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    owner, name, replacement, configuration = PLANTED_BUGS[bug]
    monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))
    with pytest.raises((AssertionError, LookupError)):
        run_state_machine_as_test(machine_of(CONFIGURATIONS[configuration]), settings=UNTIL_A_BUG)
