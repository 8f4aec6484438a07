"""What a server's memory holds, in figures that can be worked out by hand."""

import json

import pytest

from kvcache.errors import PoolTooSmallError
from simulator import Scenario, ScenarioError
from simulator.capacity import Capacity
from simulator.server import plan_server

GIB = 1 << 30


def capacity(model: str = "llama-3.1-8b", **settings) -> Capacity:
    return Capacity.of(plan_server(Scenario(model=model, **{"kv_cache_memory_bytes": 20 * GIB, **settings})))


# What a server prints


def test_full_attention_holds_what_it_says():
    """128 KiB a token, 2 MiB a block of 16: 10,240 blocks are 163,840 tokens, 40 requests of 4,096."""
    llama = capacity(max_model_len=4096)
    assert (llama.layout.num_blocks, llama.layout.kv_cache_tokens, llama.layout.max_concurrency) == (
        10_240,
        163_840,
        40,
    )


def test_older_versions_printed_the_blocks_of_one_group():
    """Gemma-3-27B in 40 GiB: 32,768 blocks over 7 groups are 4,681 each; 16 tokens a block."""
    gemma = capacity("gemma-3-27b", kv_cache_memory_bytes=40 * GIB)
    assert gemma.kv_cache_tokens_v020 == 4681 * 16


def test_more_tokens_in_flight_leave_room_for_fewer_requests():
    """Windows are reserved with what a step may add: with 8,192 tokens in flight 2.81 fit, with 16,384 2.23."""
    pool = {"model": "gemma-3-27b", "kv_cache_memory_bytes": 40 * GIB, "max_num_batched_tokens": 8192}
    synchronous, asynchronous = (capacity(**pool, async_scheduling=ahead) for ahead in (False, True))
    assert round(synchronous.layout.max_concurrency, 2) == 2.81
    assert round(asynchronous.layout.max_concurrency, 2) == 2.23


def test_a_block_grows_until_it_holds_a_state():
    """Qwen3.5-9B: 2,146,304 bytes of state, 4,096 a token: 524 tokens, in steps of 16 528; 0.76 % are padding."""
    qwen = capacity("qwen3.5-9b", max_model_len=8192)
    assert (qwen.server.block_size, round(qwen.mamba_padding_pct, 2)) == (528, 0.76)


def test_half_the_bytes_of_kv_double_the_block():
    assert capacity("qwen3.5-35b-a3b", max_model_len=8192, kv_cache_dtype="fp8").server.block_size == 2096


def test_the_padding_of_pages_and_of_groups_is_told_apart():
    """LFM2: a state of 8 KiB in a page of 32 KiB, and 10 + 6 layers in 3 groups of 6."""
    lfm = capacity("lfm2-1.2b")
    assert (lfm.mamba_padding_pct, round(lfm.padding_slots_pct, 2)) == (300.0, 11.11)


# What it does not print


def test_a_window_needs_more_while_its_prompt_is_computed():
    """gpt-oss-20b: 384 KiB a block; 8,192 + 1,033 blocks at most, 8,192 + 9 while it decodes."""
    need = capacity("gpt-oss-20b", max_num_batched_tokens=8192).need(131_072)
    assert (need.admission_bytes, need.steady_bytes) == (9225 * 393_216, 8201 * 393_216)


def test_a_short_request_has_no_window_to_give_back():
    need = capacity("gpt-oss-20b").need(100)
    assert need.steady_bytes == (7 + 7) * 393_216


def test_states_bound_the_requests_of_a_step():
    assert capacity("qwen3.5-9b", max_model_len=8192).max_bootable_num_seqs == 20 * GIB // 17_301_504
    assert capacity().max_bootable_num_seqs is None


@pytest.mark.parametrize(
    ("settings", "shortest"),
    [
        ({"model": "llama-3.1-8b"}, 17),
        ({"model": "llama-3.1-8b", "enable_prefix_caching": False}, None),
        ({"model": "qwen3.5-9b", "max_model_len": 8192}, 529),
        ({"model": "mamba2-2.7b"}, None),
        ({"model": "llama-3.1-8b", "speculative_config": {"method": "eagle3", "num_speculative_tokens": 2}}, 33),
    ],
)
def test_the_shortest_prompt_that_can_hit_is_a_block_and_a_token(settings, shortest):
    assert capacity(**settings).min_cacheable_prompt_tokens == shortest


# Refusals


def test_it_refuses_as_the_server_does():
    """gpt-oss-120b on one H100, vLLM issue 27508: 4.54 GiB needed, 1.71 there."""
    with pytest.raises(PoolTooSmallError) as error:
        capacity("gpt-oss-120b", kv_cache_memory_bytes="1.71GiB", max_num_batched_tokens=1024, async_scheduling=False)
    assert str(error.value) == (
        "a request of max_model_len 131,072 needs 4.54 GiB of KV cache, 1.71 GiB are available;"
        " the longest that fits is about 48,608 tokens"
    )


def test_auto_takes_the_longest_that_fits():
    """3,640 blocks, the null block and 1,033 for the windows left out: 2,606 of 16 tokens."""
    assert capacity("gpt-oss-120b", kv_cache_memory_bytes="2GiB", max_model_len="auto").layout.max_model_len == 41_696


# Ranks and stages


def test_few_kv_heads_are_copied_to_every_rank():
    """Four KV heads on eight ranks: a token takes as much on each as on four."""
    gemma = [capacity("gemma-3-4b", tensor_parallel_size=ranks).bytes_per_block for ranks in (1, 2, 4, 8)]
    assert [gemma[0] // each for each in gemma] == [1, 2, 4, 4]


def test_a_latent_vector_is_on_every_rank():
    whole, eighth = (capacity("deepseek-v3", tensor_parallel_size=ranks) for ranks in (1, 8))
    assert whole.bytes_per_block == eighth.bytes_per_block == 61 * 64 * 576 * 2


def test_a_stage_holds_its_layers_only():
    """Half of Llama's layers on each of two stages: twice the blocks in the same bytes."""
    one, two = (capacity(pipeline_parallel_size=stages, async_scheduling=False) for stages in (1, 2))
    assert (two.bytes_per_block, two.layout.num_blocks) == (one.bytes_per_block // 2, one.layout.num_blocks * 2)


def test_the_poorest_stage_sets_the_number_of_blocks():
    """62 layers over 4 stages are 15, 16, 16 and 15: those of 16 have three places in the largest group."""
    server = plan_server(Scenario(model="gemma-3-27b", pipeline_parallel_size=4, kv_cache_memory_bytes=10 * GIB))
    held = [max(len(group.layers) for group in stage.groups) for stage in server.stages]
    assert server.num_blocks == 10 * GIB // (max(held) * 131_072)


# Drafters


def test_a_drafter_joins_the_groups_and_widens_the_states():
    """Qwen3.6-27B with three MTP tokens on two ranks: blocks of 1,600, and 3 padding layers among 48 states."""
    drafted = capacity(
        "qwen3.6-27b",
        tensor_parallel_size=2,
        dtype="float16",
        kv_cache_dtype="fp8_e5m2",
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )
    assert drafted.server.block_size == 1600
    assert [len(group.layers) for group in drafted.layout.groups] == [16, 16, 16, 17]
    assert sum(group.num_padding_layers for group in drafted.layout.groups) == 3


def test_a_search_in_the_prompt_keeps_nothing():
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    assert capacity(speculative_config=ngram).describe() == capacity().describe()


def test_a_model_without_draft_layers_has_none_to_use():
    with pytest.raises(ScenarioError, match=r"^--speculative-config: llama-3.1-8b has no layers of its own"):
        capacity(speculative_config={"method": "mtp", "num_speculative_tokens": 1})


def test_every_figure_is_plain_json():
    described = capacity("jamba-v0.1", max_model_len=8192).describe()
    assert json.loads(json.dumps(described)) == described
