"""Figures from public reports, as docs/user_questions.md explains them: what users saw, and what is said of it here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Scenario, simulate
from simulator.capacity import Capacity
from simulator.server import plan_server
from workloads import Trace, TraceRequest


def plan(model: str, **flags) -> Capacity:
    return Capacity.of(plan_server(Scenario(model=model, **{"num_gpu_blocks_override": 1000, **flags})))


def mtp(num_tokens: int) -> dict[str, object]:
    return {"method": "mtp", "num_speculative_tokens": num_tokens}


def ngram(num_tokens: int) -> dict[str, object]:
    return {"method": "ngram", "num_speculative_tokens": num_tokens}


def run(model: str, rows: list[TraceRequest], **flags):
    """One step a second; prefix ids stand for one token each."""
    scenario = Scenario(model=model, step_time_s=1.0, **{"num_gpu_blocks_override": 1000, **flags})
    return simulate(scenario, Trace("prompts", 1, lambda: iter(rows)))


def hits(model: str, prompts: list[tuple[int, int]], **flags) -> list[int]:
    """Of prompts one a minute: (tokens, how many of them it has in common with the others)."""
    rows = [
        TraceRequest(str(nth), 60.0 * nth, tokens, 1, tuple(range(shared)))
        for nth, (tokens, shared) in enumerate(prompts)
    ]
    return run(model, rows, **flags).requests["cached_tokens"].tolist()


def at_once(num_requests: int, prompt_tokens: int, output_tokens: int) -> list[TraceRequest]:
    return [TraceRequest(str(nth), 0.0, prompt_tokens, output_tokens) for nth in range(num_requests)]


BATCH = {"kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "bfloat16", "max_model_len": 150_000}
"""qwen38-27b-rtx3090, batch mode."""
DUAL_FAST = {
    "tensor_parallel_size": 2,
    "kv_cache_dtype": "fp8",
    "speculative_config": mtp(4),
    "num_gpu_blocks_override": 366,
}
"""club-3090 #1170."""
SHARED_CARD = {
    "kv_cache_dtype": "fp8",
    "block_size": 128,
    "num_gpu_blocks_override": 137,
    "max_model_len": 32768,
    "max_num_batched_tokens": 2048,
}
"""The note with 154% of the pool."""


# Prefix hits


@pytest.mark.parametrize(
    ("model", "flags", "block"),
    [
        ("qwen3.5-4b", {}, 528),  # vLLM #40696
        ("qwen3.6-35b-a3b", {}, 1056),  # #51250
        ("qwen3.6-35b-a3b", {"kv_cache_dtype": "fp8"}, 2096),
        ("nemotron-3-nano", {}, 2096),  # #53749
        ("kimi-linear-48b-a3b", {}, 1920),
        ("nemotron-3-super", {"kv_cache_dtype": "fp8"}, 8320),  # #48401
        ("qwen3.8-27b", DUAL_FAST, 1616),
        ("qwen3.6-35b-a3b", SHARED_CARD, 2176),
    ],
)
def test_blocks_are_those_of_the_reports(model, flags, block):
    assert plan(model, **flags).server.block_size == block


@pytest.mark.parametrize(
    ("drafted", "kv_cache_dtype", "block", "padding"),
    [(ngram(7), "auto", 448, "3.23"), (ngram(15), "auto", 480, "1.27"), (mtp(3), "fp8", 832, "0.48")],
)
def test_drafted_tokens_make_blocks_longer(drafted, kv_cache_dtype, block, padding):
    """qwen38-27b-rtx3090 #102: blocks and paddings of three servers' logs."""
    flags = {"kv_cache_dtype": kv_cache_dtype, "mamba_ssm_cache_dtype": "bfloat16", "speculative_config": drafted}
    server = plan("qwen3.8-27b", max_model_len=65_536, **flags)
    assert (server.server.block_size, f"{server.mamba_padding_pct:.2f}") == (block, padding)


@pytest.mark.parametrize(("tokens", "hit"), [(480, 0), (528, 0), (529, 528), (552, 528), (979, 528)])
def test_a_prompt_sent_again_hits_its_whole_blocks(tokens, hit):
    """vLLM #40696: nothing below 528 tokens, about 95% of 552, about 54% of 979."""
    assert hits("qwen3.5-4b", [(tokens, tokens)] * 2, max_model_len=1024) == [0, hit]


@given(shared=st.integers(0, 3000), own=st.integers(1, 1500))
@settings(max_examples=25, deadline=None)
def test_a_shared_beginning_is_hit_in_whole_blocks(shared, own):
    """floor(P / B) x B, at the latest once two prompts have shown where they part."""
    assert hits("qwen3.5-4b", [(shared + own, shared)] * 3)[-1] == shared // 528 * 528


def test_1131_tokens_and_no_hit():
    """vLLM #51198: 561 tokens, then the same with a suffix."""
    flags = {"max_num_batched_tokens": 4096}
    assert hits("qwen3.6-35b-a3b", [(561, 561), (570, 561)], **flags) == [0, 0]
    assert hits("qwen3.6-35b-a3b", [(1057, 1057), (1066, 1057)], **flags) == [0, 1056]


@pytest.mark.parametrize(
    ("tokens", "reported"),
    [(512, 0), (1024, 0), (2048, 832), (4096, 2496), (8192, 6656), (16384, 14976), (32768, 31616)],
)
def test_with_mtp_a_hit_is_a_block_shorter(tokens, reported):
    """qwen38-27b-rtx3090 #102, the long profile: from the shortest prompt that can hit on, by whole blocks."""
    server = plan("qwen3.8-27b", speculative_config=mtp(3), **BATCH)
    block, shortest = server.server.block_size, server.min_cacheable_prompt_tokens
    assert ((tokens - shortest) // block + 1) * block * (tokens >= shortest) == reported


@pytest.mark.parametrize(
    ("blocks", "caching", "printed"),
    [
        (285, False, (223_821, "1.49")),
        (250, True, (193_298, "1.29")),
        (250, False, (196_335, "1.31")),  # "196k" and "1.31x" after a cold start, without prefix caching
    ],
)
def test_two_pools_that_are_said_to_differ_by_prefix_caching(blocks, caching, printed):
    layout = plan("qwen3.8-27b", num_gpu_blocks_override=blocks, enable_prefix_caching=caching, **BATCH).layout
    assert (layout.kv_cache_tokens, f"{layout.max_concurrency:.2f}") == printed


def test_prefix_caching_costs_one_state_per_group():
    """One page becomes two in each of three groups."""
    off, on = (plan("qwen3.8-27b", enable_prefix_caching=caching, **BATCH).layout for caching in (False, True))
    assert on.blocks_per_request(150_000) - off.blocks_per_request(150_000) == 3


# Capacity and preemption


def test_the_printed_figure_counts_the_states():
    """530,081 tokens are 2.02 requests with six states per group; tokens alone would be 591,456."""
    layout = plan("qwen3.8-27b", **DUAL_FAST).layout
    assert (layout.kv_cache_tokens, f"{layout.max_concurrency:.2f}") == (530_081, "2.02")
    assert layout.num_blocks * 1616 == 591_456


@pytest.mark.parametrize(("tokens", "scheduled", "reported"), [(200_000, 284, 0.77), (242_000, 336, 0.91)])
def test_two_long_prompts_fit(tokens, scheduled, reported):
    """`scheduled` blocks were the most that vLLM 0.32's scheduler held for both; `reported` with states far apart."""
    pool = plan("qwen3.8-27b", **DUAL_FAST).layout
    held = 2 * pool.blocks_per_request(tokens)
    assert held == scheduled
    assert held / (pool.num_blocks - 1) == pytest.approx(reported, abs=0.011)


def test_two_long_prompts_run_at_once():
    """The same bytes, and nothing drafted."""
    pool_bytes = plan("qwen3.8-27b", **DUAL_FAST).layout.pool_bytes
    flags = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "num_gpu_blocks_override": None}
    summary = run("qwen3.8-27b", at_once(2, 200_000, 500), kv_cache_memory_bytes=pool_bytes, **flags).summary
    assert (summary["running"]["max"], summary["preemptions"]["total"]) == (2, 0)


@pytest.mark.parametrize(("gib", "fit"), [(42, 20), (14, 7)])
def test_a_nano_request_of_128k_takes_two_gib(gib, fit):
    """VSS blueprint #1649: "about 20" and "about 7" of 2.0 GiB."""
    flags = {"mamba_ssm_cache_dtype": "bfloat16", "enable_prefix_caching": False, "max_model_len": 128_000}
    server = plan("nemotron-nano-9b-v2", num_gpu_blocks_override=None, kv_cache_memory_bytes=f"{gib}GiB", **flags)
    assert round(server.need(128_000).admission_bytes / 2**30, 1) == 2.0
    assert server.layout.max_concurrency == pytest.approx(fit, abs=0.75)


def test_prompts_of_154_percent_queue():
    """204,055 tokens, 6.23x; twelve prompts of 26,000 tokens: nobody is preempted."""
    layout = plan("qwen3.6-35b-a3b", **SHARED_CARD).layout
    assert (layout.kv_cache_tokens, f"{layout.max_concurrency:.2f}") == (204_055, "6.23")
    summary = run("qwen3.6-35b-a3b", at_once(12, 26_000, 64), **SHARED_CARD).summary
    assert (summary["requests"]["finished"], summary["preemptions"]["total"]) == (12, 0)
    assert summary["running"]["max"] < 12


def test_long_answers_are_preempted_and_fewer_at_a_time_are_not():
    """Nothing is reserved for what a request will write."""
    answers = at_once(12, 26_000, 500)
    many, few = (run("qwen3.6-35b-a3b", answers, max_num_seqs=seqs, **SHARED_CARD).summary for seqs in (12, 8))
    assert many["preemptions"]["total"] > 0 == few["preemptions"]["total"]


def test_a_request_that_0_19_never_admitted_runs():
    """vLLM #39734: 76,640 tokens printed, 100,000 waited forever; with all layers kept whole 83,584 are the most."""
    gemma = plan("gemma-4-31b", tensor_parallel_size=2, num_gpu_blocks_override=28_740)
    whole = {"disable_hybrid_kv_cache_manager": True, "max_model_len": "auto", "num_gpu_blocks_override": None}
    hybrid_off = plan(
        "gemma-4-31b", tensor_parallel_size=2, kv_cache_memory_bytes=28_740 * gemma.bytes_per_block, **whole
    )
    assert gemma.kv_cache_tokens_v020 == 76_640
    assert (hybrid_off.max_request_tokens, gemma.max_request_tokens) == (83_584, 262_144)
    flags = {"tensor_parallel_size": 2, "num_gpu_blocks_override": 28_740}
    summary = run("gemma-4-31b", at_once(1, 100_000, 2), **flags).summary
    assert summary["requests"]["finished"] == 1
    assert summary["kv_cache_usage"]["max"] < 1 / 3


def test_a_fixed_part_comes_off_first():
    """82% of a request's bytes are far less than 82% of its tokens, as in the note where they were 6%."""
    flags = {"speculative_config": mtp(5), "max_model_len": 131_072}
    whole = plan("nemotron-3-super", **flags).layout.blocks_per_request(131_072)
    shorter = {**flags, "max_model_len": "auto", "num_gpu_blocks_override": 1 + whole * 82 // 100}
    assert plan("nemotron-3-super", **shorter).layout.max_model_len < 0.65 * 131_072
