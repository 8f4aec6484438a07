"""How many blocks a budget gives, and what a server can promise with them."""

import pytest

from kvcache.errors import PoolTooSmallError
from kvcache.grouping import group_layers
from kvcache.layout import block_sizes, blocks_per_request, plan_layout
from kvcache.specs import FullAttentionSpec, SlidingWindowSpec
from tests.kvcache.pools import full, mamba, sliding

GIB = 1 << 30


def mixed(window, *, heads, head_size, full_layers, sliding_layers, hybrid=True):
    """Groups of a model with one window size."""
    shape = {"block_size": 16, "num_kv_heads": heads, "head_size": head_size}
    specs = [SlidingWindowSpec(**shape, window=window)] * sliding_layers + [FullAttentionSpec(**shape)] * full_layers
    return group_layers(specs, hybrid)


def gemma_3_27b(hybrid=True):
    return mixed(1024, heads=16, head_size=128, full_layers=10, sliding_layers=52, hybrid=hybrid)


def gpt_oss_20b(hybrid=True):
    return mixed(128, heads=8, head_size=64, full_layers=12, sliding_layers=12, hybrid=hybrid)


def layout_of(groups, budget_gib, in_flight):
    return plan_layout(groups, kv_cache_bytes=budget_gib * GIB, max_model_len=131_072, max_in_flight_tokens=in_flight)


# ------------------------------------------------------------------------------- blocks and concurrency


@pytest.mark.parametrize(("in_flight", "printed"), [(2_048, "3.50x"), (8_192, "2.81x"), (16_384, "2.23x")])
def test_gemma_3_27b_concurrency_falls_as_more_tokens_are_in_flight(in_flight, printed):
    """Windows hold on to what is scheduled but not settled, so the same 32,768 blocks promise less."""
    layout = layout_of(gemma_3_27b(), 40, in_flight)
    assert (layout.num_blocks, f"{layout.max_concurrency:.2f}x") == (32_768, printed)


@pytest.mark.parametrize(
    ("hybrid", "in_flight", "expected"),
    [
        (True, 8_192, (54_613, "6.27x", 821_558)),
        (True, 16_384, (54_613, "5.92x", 775_960)),
        (False, 8_192, (27_306, "3.33x", 436_896)),
    ],
)
def test_gpt_oss_20b_in_20_gib(hybrid, in_flight, expected):
    """Blocks, concurrency and the "GPU KV cache size" that a server prints."""
    layout = layout_of(gpt_oss_20b(hybrid), 20, in_flight)
    assert (layout.num_blocks, f"{layout.max_concurrency:.2f}x", layout.kv_cache_tokens) == expected


def test_the_need_of_the_longest_gpt_oss_120b_request():
    """A server that could not start said 4.54 GiB."""
    groups = mixed(128, heads=8, head_size=64, full_layers=18, sliding_layers=18)
    need = blocks_per_request(groups, 131_072, 1_024)
    layout = plan_layout(groups, num_blocks=need + 1, max_model_len=131_072, max_in_flight_tokens=1_024)
    assert (need, f"{need * layout.bytes_per_block / GIB:.2f}") == (8_192 + 73, "4.54")


def test_qwen3_6_35b_in_299_blocks_of_2096_tokens():
    """63 blocks of attention, two states in each of three groups."""
    groups = group_layers(([mamba(2_096)] * 3 + [full(2_096)]) * 10)
    layout = plan_layout(groups, num_blocks=299, max_model_len=131_072, max_in_flight_tokens=16_384)
    assert (f"{layout.max_concurrency:.2f}x", layout.kv_cache_tokens) == ("4.33x", 567_978)


def test_a_model_that_keeps_nothing_has_only_the_null_block():
    assert plan_layout([], kv_cache_bytes=GIB, max_model_len=1, max_in_flight_tokens=1).num_blocks == 1


def test_a_budget_or_a_number_of_blocks_is_needed():
    with pytest.raises(ValueError, match="either kv_cache_bytes or num_blocks is needed"):
        plan_layout(gpt_oss_20b(), max_model_len=1, max_in_flight_tokens=1)


# ------------------------------------------------------------------------------------------ the start-up


def test_gemma_3_27b_does_not_start_without_the_hybrid_manager():
    """The words differ from the server's, the numbers do not: 62.0 GiB needed, 39.99 there, 84544 tokens would fit."""
    with pytest.raises(PoolTooSmallError) as refusal:
        layout_of(gemma_3_27b(hybrid=False), 40, 8_192)
    assert str(refusal.value) == (
        "a request of max_model_len 131,072 needs 62.00 GiB of KV cache, 39.99 GiB are available"
        "; the longest that fits is about 84,544 tokens"
    )


def test_the_longest_request_must_fit_beside_the_null_block():
    """Ten blocks of tokens need a pool of eleven."""
    groups = group_layers([full()])
    with pytest.raises(PoolTooSmallError, match="the longest that fits is about 144 tokens"):
        plan_layout(groups, num_blocks=10, max_model_len=160, max_in_flight_tokens=16)
    assert plan_layout(groups, num_blocks=11, max_model_len=160, max_in_flight_tokens=16).max_concurrency == 1.1


def test_the_advice_is_the_longest_that_starts():
    """What the refusal names fits, one token more does not."""
    groups, in_flight = gemma_3_27b(hybrid=False), 8_192
    budget = {"kv_cache_bytes": 40 * GIB, "max_in_flight_tokens": in_flight}
    assert plan_layout(groups, **budget, max_model_len=84_544).max_model_len == 84_544
    with pytest.raises(PoolTooSmallError):
        plan_layout(groups, **budget, max_model_len=84_545)


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_pool_of_the_null_block_alone_serves_nobody(num_blocks):
    with pytest.raises(PoolTooSmallError, match="no memory is left for KV cache blocks"):
        plan_layout(group_layers([full()]), num_blocks=num_blocks, max_model_len=16, max_in_flight_tokens=16)


# --------------------------------------------------------------------------- steps of hits, units of hashes


@pytest.mark.parametrize(
    ("specs", "caching", "expected"),
    [
        pytest.param([full()], True, (16, 16), id="one group"),
        pytest.param([full(), sliding(64)], True, (16, 16), id="equal blocks"),
        pytest.param([sliding(64, num_kv_heads=2), full()], True, (32, 16), id="blocks of 16 and 32"),
        pytest.param([sliding(64, num_kv_heads=2), full()], False, (32, 32), id="nothing is hashed"),
        pytest.param([sliding(64, num_kv_heads=3), full(), full(num_kv_heads=6)], True, (96, 16), id="16, 32 and 96"),
        pytest.param([mamba(64, "none", page_tokens=16), full()], True, (64, 64), id="states that are not kept"),
    ],
)
def test_hits_are_agreed_on_in_common_multiples_and_hashed_in_common_divisors(specs, caching, expected):
    assert block_sizes(group_layers(specs), 16, caching) == expected
