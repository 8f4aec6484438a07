"""Which windows are kept for later hits: the same prompt of 320 tokens under three retention intervals.

A window of 64 tokens in blocks of 16 beside full attention, as in gpt-oss: four blocks to resume from.
"""

import pytest

from kvcache.errors import KVCacheError
from tests.kvcache.pools import cached_positions, full, hit_of, mamba, manager_of, serve, sliding

PROMPT = range(320)
DENSE = None


def warm(retention):
    """A manager that has served the prompt."""
    manager = manager_of(full(), sliding(64), prefix_cache_retention_interval=retention)
    serve(manager, PROMPT)
    return manager


def parting_at(token):
    return [*range(token), *range(1_000, 1_020)]


@pytest.mark.parametrize(
    ("retention", "positions"),
    [(0, [15, 16, 17, 18]), (128, [4, 5, 6, 7, *range(12, 19)]), (DENSE, list(range(20)))],
)
def test_which_sliding_blocks_are_cached(retention, positions):
    """Full attention always caches all 20."""
    assert cached_positions(warm(retention), PROMPT) == [list(range(20)), positions]


@pytest.mark.parametrize(
    ("retention", "hits"),
    [
        (0, [304, 304, 0, 0, 0, 0, 0]),
        (128, [304, 304, 288, 256, 128, 128, 0]),
        (DENSE, [304, 320, 288, 256, 192, 128, 96]),
    ],
)
def test_hits_of_later_prompts(retention, hits):
    """Identical, longer by 80 tokens, and parting at tokens 300, 260, 200, 130 and 100."""
    manager = warm(retention)
    prompts = [PROMPT, range(400), *map(parting_at, (300, 260, 200, 130, 100))]
    assert [hit_of(manager, prompt) for prompt in prompts] == hits


def test_dense_leaves_out_windows_that_no_hit_can_end_behind():
    """A window of 8 in blocks of 8, hits in steps of 32: every fourth block is enough."""
    manager = manager_of(full(8), sliding(8, 8, num_kv_heads=4), prefix_cache_retention_interval=DENSE)
    assert (manager.scheduler_block, manager.managers[1].block_size) == (32, 8)
    serve(manager, range(160))
    assert cached_positions(manager, range(160))[1] == [3, 7, 11, 15, 19]


def test_a_window_as_long_as_the_interval_keeps_everything():
    manager = manager_of(full(), sliding(64), prefix_cache_retention_interval=64)
    serve(manager, PROMPT)
    assert cached_positions(manager, PROMPT) == [list(range(20))] * 2


@pytest.mark.parametrize("num_tokens", [321, 400])
def test_chunks_of_a_prompt_keep_the_same_windows_as_one_step(num_tokens):
    prompt = range(num_tokens)
    at_once, in_chunks = (manager_of(full(), sliding(64), prefix_cache_retention_interval=128) for _ in range(2))
    serve(at_once, prompt)
    serve(in_chunks, prompt, 50, 130, 131, 256, 310)
    assert cached_positions(at_once, prompt) == cached_positions(in_chunks, prompt)


@pytest.mark.parametrize(
    ("retention", "positions"), [(0, [18]), (128, [7, 15, 18]), (16, range(20)), (DENSE, range(20))]
)
def test_which_states_are_cached(retention, positions):
    """In both groups of Mamba layers; chunks of one block leave a state behind at every block's end."""
    manager = manager_of(full(), mamba(16), mamba(16), prefix_cache_retention_interval=retention)
    serve(manager, PROMPT, *range(16, 320, 16))
    assert cached_positions(manager, PROMPT) == [list(range(20)), list(positions), list(positions)]


# ---------------------------------------------------------------------------------- what a server refuses


@pytest.mark.parametrize(
    ("specs", "retention", "message"),
    [
        ([full()], 128, "must be 0: no layer has a sliding window or a Mamba state"),
        ([full(), sliding(64)], 100, "must be a multiple of 16 tokens, got 100"),
        ([full(), sliding(64)], -16, "must be a multiple of 16 tokens, got -16"),
    ],
)
def test_an_interval_that_keeps_nothing_is_refused(specs, retention, message):
    with pytest.raises(KVCacheError, match=message):
        manager_of(*specs, prefix_cache_retention_interval=retention)
