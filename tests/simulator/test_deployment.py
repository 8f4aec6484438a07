"""From a scenario to a server: what vLLM would resolve its defaults to, and what it would refuse."""

import json

import pytest

from kvcache.errors import KVCacheError, PoolTooSmallError
from models_configs import UnknownModelError
from simulator import Scenario, ScenarioError
from simulator.deployment import Deployment, deploy
from simulator.hardware import UnknownGpuError
from simulator.memory import WeightsDoNotFitError

GIB = 1 << 30


def server(model: str = "llama-3.1-8b", gpu: str | None = "h100-80gb", **settings) -> Deployment:
    return deploy(Scenario(model=model, gpu=gpu, **settings))


# Limits of a step


@pytest.mark.parametrize(
    ("gpu", "tokens", "requests"),
    [
        ("b200", 16384, 1024),
        ("mi300x", 16384, 1024),
        ("h200", 8192, 1024),
        ("h100-80gb", 8192, 1024),
        ("a100-80gb", 2048, 256),
        ("l40s", 2048, 256),
    ],
)
def test_the_limits_of_a_step_follow_from_the_gpu(gpu, tokens, requests):
    """From 160 GiB, from 70 GiB but for an A100, and below, as vLLM's server has it."""
    limits = server(gpu=gpu, max_model_len=8192).scheduler_settings
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (tokens, requests)


def test_without_a_gpu_the_limits_are_those_of_a_large_one():
    limits = server(gpu=None, kv_cache_memory_bytes="40GiB").scheduler_settings
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (8192, 1024)


def test_limits_that_are_stated_are_taken():
    limits = server(max_num_seqs=7, max_num_batched_tokens=99, max_model_len=1000).scheduler_settings
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len) == (7, 99, 1000)


def test_no_more_requests_run_than_a_step_has_tokens():
    assert server(max_num_batched_tokens=99).scheduler_settings.max_num_seqs == 99


def test_a_step_of_fewer_tokens_than_requests_is_refused():
    with pytest.raises(ScenarioError, match=r"^--max-num-batched-tokens: must be at least --max-num-seqs 20, got 10$"):
        server(max_num_batched_tokens=10, max_num_seqs=20)


def test_the_longest_request_is_the_models_unless_stated():
    lengths = [server(**settings).scheduler_settings.max_model_len for settings in ({}, {"max_model_len": 5000})]
    assert lengths == [131_072, 5000]


# Memory


def test_a_budget_in_bytes_gives_whole_blocks():
    """Llama-3.1-8B keeps 2 MiB in a block of 16 tokens: 32 layers of 8 heads of 128 elements, keys and values."""
    capacity = server(kv_cache_memory_bytes=17 * GIB + 5).describe()
    assert (capacity["bytes_per_block"], capacity["num_blocks"]) == (2 << 20, 17 * 512)
    assert capacity["remainder_bytes"] == 5


def test_blocks_stated_outright_need_no_budget():
    capacity = server(gpu=None, num_gpu_blocks_override=9000).describe()
    assert (capacity["num_blocks"], capacity["kv_budget_bytes"]) == (9000, None)


def test_a_utilization_leaves_more_or_less_for_kv():
    less, more = (server(gpu_memory_utilization=share).kv_budget_bytes for share in (0.80, 0.90))
    assert more - less == pytest.approx(8 * GIB, abs=2)


def test_two_ranks_share_heads_and_weights():
    """Each holds half the bytes of a block, and about half of the weights."""
    one, two = (server(tensor_parallel_size=n).describe() for n in (1, 2))
    assert two["bytes_per_block"] * 2 == one["bytes_per_block"]
    assert two["weight_bytes"] / one["weight_bytes"] == pytest.approx(0.5, abs=0.01)


def test_kv_in_eight_bits_takes_half_the_bytes():
    auto, fp8 = (server(kv_cache_dtype=dtype).describe()["bytes_per_block"] for dtype in ("auto", "fp8"))
    assert fp8 * 2 == auto


def test_a_wider_dtype_doubles_weights_and_kv():
    auto, float32 = (server(dtype=dtype).describe() for dtype in ("auto", "float32"))
    assert (float32["weight_bytes"], float32["bytes_per_block"]) == (
        2 * auto["weight_bytes"],
        2 * auto["bytes_per_block"],
    )


def test_kv_of_a_stated_dtype_does_not_follow_the_models():
    assert server(dtype="float32", kv_cache_dtype="bfloat16").describe()["bytes_per_block"] == 2 << 20


def test_jambas_blocks_grow_until_they_hold_a_state():
    """A state of 311,296 bytes is as large as 76 tokens of attention: 80, in steps of 16."""
    deployment = server("jamba-v0.1", gpu="b200")
    assert {group["block_size"] for group in deployment.describe()["groups"]} == {80}
    assert deployment.scheduler_settings.state_block == 80
    assert deployment.resolved_scenario()["block_size"] == 80


def test_without_a_prefix_cache_jamba_keeps_one_state_per_request():
    deployment = server("jamba-v0.1", gpu="b200", enable_prefix_caching=False, max_model_len=4096)
    sizes = {group["kind"]: group["block_size"] for group in deployment.describe()["groups"]}
    assert (sizes["mamba"], deployment.scheduler_settings.state_block) == (4096, None)


def test_a_state_of_another_dtype_changes_the_block():
    """Twice the bytes in the recurrent state: 140 tokens, so 144."""
    deployment = server("jamba-v0.1", gpu="b200", mamba_ssm_cache_dtype="float32")
    assert deployment.resolved_scenario()["block_size"] == 144


def test_with_the_hybrid_manager_off_windows_are_kept_whole():
    """Gemma-3's seven groups become one of 62 layers, which holds far fewer tokens."""
    hybrid, kept = (
        server("gemma-3-27b", tensor_parallel_size=2, disable_hybrid_kv_cache_manager=off).describe()
        for off in (False, True)
    )
    assert ([len(capacity["groups"]) for capacity in (hybrid, kept)]) == [7, 1]
    assert kept["max_concurrency"] < hybrid["max_concurrency"] / 3


# What is refused


def test_an_unknown_model_or_gpu_is_named():
    with pytest.raises(UnknownModelError, match=r'unknown model "llama-3\.1-9b"; did you mean "llama-3\.1-8b"'):
        server("llama-3.1-9b")
    with pytest.raises(UnknownGpuError, match='unknown gpu "h300"; did you mean "h'):
        server(gpu="h300")


def test_memory_without_a_gpu_must_be_stated():
    with pytest.raises(ScenarioError, match=r"^--gpu: is needed .* or state --kv-cache-memory-bytes or "):
        server(gpu=None)


def test_step_times_without_a_gpu_must_be_stated():
    with pytest.raises(ScenarioError, match=r"^--gpu: is needed to tell how long steps take; or state --step-time-s$"):
        _ = server(gpu=None, num_gpu_blocks_override=9000).step_times


def test_heads_that_cannot_be_split_are_refused():
    with pytest.raises(ValueError, match=r"^--tensor-parallel-size: the heads .* cannot be split evenly, got 3"):
        server(tensor_parallel_size=3)


def test_weights_that_do_not_fit_are_refused_with_what_would():
    with pytest.raises(WeightsDoNotFitError, match=r"on each of 1 h100-80gb.*--tensor-parallel-size 2 would fit"):
        server("llama-3.1-70b")


def test_a_pool_too_small_for_the_longest_request_is_refused_with_the_longest_that_fits():
    """One of 200 blocks is the null block: 199 of 16 tokens."""
    with pytest.raises(PoolTooSmallError, match=r"max_model_len 4,096 .*; the longest that fits is about 3,184 "):
        server(num_gpu_blocks_override=200, max_model_len=4096)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-1b", "gpt-oss-20b", "jamba-v0.1"])
def test_the_longest_that_fits_does_fit_and_one_more_does_not(model):
    pool = {"gpu": None, "num_gpu_blocks_override": 600}
    with pytest.raises(PoolTooSmallError) as error:
        server(model, **pool)
    longest = int(str(error.value).rpartition("about ")[2].removesuffix(" tokens").replace(",", ""))
    assert server(model, max_model_len=longest, **pool).layout.num_blocks == 600
    with pytest.raises(PoolTooSmallError):
        server(model, max_model_len=longest + 1, **pool)


def test_retention_that_ends_inside_a_block_is_refused():
    with pytest.raises(KVCacheError, match="must be a multiple of 16 tokens, got 100"):
        server("gemma-3-1b", prefix_cache_retention_interval=100).new_scheduler()


# What is shown


def test_the_resolved_scenario_has_every_default_filled_in():
    resolved = server("Meta-Llama-3.1-8B", gpu="H100").resolved_scenario()
    assert [resolved[name] for name in ("model", "gpu", "dtype", "max_num_seqs", "max_model_len")] == [
        "llama-3.1-8b",
        "h100-80gb",
        "bfloat16",
        1024,
        131_072,
    ]


@pytest.mark.parametrize(("model", "quantization"), [("mixtral-8x7b", "fp8"), ("gpt-oss-20b", "mxfp4")])
def test_a_quantized_server_is_resolved_to_itself(model, quantization):
    """The name is that of the model as published; how its weights are stored stands beside it."""
    first = server(model, quantization=quantization, tensor_parallel_size=4)
    again = deploy(Scenario(**first.resolved_scenario()))
    assert (again.model, again.resolved_scenario()) == (first.model, first.resolved_scenario())


def test_weights_in_8_bits_leave_more_for_kv():
    """The matrices of Llama-3.1-8B are 6.98 billion elements: so many bytes less, and their scales more."""
    plain, quantized = (server(quantization=method).kv_budget_bytes for method in (None, "fp8"))
    assert quantized - plain == pytest.approx(6.98e9, rel=0.002)


def test_what_is_shown_is_plain_json():
    deployment = server("gemma-3-27b", tensor_parallel_size=2, trace="traces/mooncake.jsonl")
    shown = [deployment.resolved_scenario(), deployment.describe()]
    assert json.loads(json.dumps(shown)) == shown
