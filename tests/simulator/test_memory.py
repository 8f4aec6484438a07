"""What is left for KV cache."""

import math
from dataclasses import replace

import pytest

from models_configs import find_model
from simulator.hardware import find_gpu
from simulator.memory import MemoryOptions, WeightsDoNotFitError, kv_budget_bytes, plan_memory

GIB = 2**30
LLAMA = find_model("llama-3.1-8b")
H100 = find_gpu("h100-80gb")


def test_all_that_is_offered_goes_somewhere() -> None:
    budget = plan_memory(LLAMA, H100, MemoryOptions())
    assert budget.offered_bytes == math.ceil(0.92 * H100.memory_bytes)
    assert budget.weight_bytes + budget.beside_weights_bytes + budget.kv_bytes == budget.offered_bytes


def test_an_rtx_4090_is_left_what_a_real_server_found() -> None:
    """Llama-3.1-8B, vLLM 0.19, utilization 0.9: 2,588 blocks of 2 MiB (LLMServingSim's measured run)."""
    options = MemoryOptions(gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256)
    left_bytes = kv_budget_bytes(LLAMA, find_gpu("rtx-4090"), options)
    assert left_bytes == pytest.approx(2588 * 2 * 2**20, rel=0.05)


def test_a_smaller_step_leaves_more_for_kv() -> None:
    large, small = (MemoryOptions(max_num_batched_tokens=n) for n in (16_384, 2048))
    assert kv_budget_bytes(LLAMA, H100, large) < kv_budget_bytes(LLAMA, H100, small)


def test_fewer_requests_leave_more_for_kv() -> None:
    """The sampler keeps 4 bytes and a bit for each request and word."""
    many, few = (plan_memory(LLAMA, H100, MemoryOptions(max_num_seqs=n)) for n in (1024, 256))
    assert many.sampler_bytes - few.sampler_bytes == 768 * 128_256 * 33 // 8


def test_a_huge_vocabulary_makes_logits_the_peak() -> None:
    options = MemoryOptions(max_num_batched_tokens=1024, max_num_seqs=1024)
    budget = plan_memory(replace(LLAMA, vocab_size=1_000_000), H100, options)
    assert budget.activation_bytes == 2 * 1024 * (4096 + 1_000_000)


def test_ranks_need_buffers_to_talk() -> None:
    alone, together = (plan_memory(LLAMA, H100, MemoryOptions(tensor_parallel=n)) for n in (1, 2))
    assert (together.runtime_bytes - alone.runtime_bytes) / GIB == pytest.approx(0.42)


def test_memory_given_outright_is_taken() -> None:
    options = MemoryOptions(kv_cache_memory_bytes=12 * GIB)
    assert kv_budget_bytes(find_model("jamba-1.5-large"), find_gpu("l4"), options) == 12 * GIB


def test_weights_that_do_not_fit_are_said_in_one_line_with_what_would() -> None:
    with pytest.raises(WeightsDoNotFitError) as error:
        kv_budget_bytes(find_model("llama-3.1-70b"), H100, MemoryOptions())
    assert str(error.value) == (
        "llama-3.1-70b needs 131.4 GiB of weights on each of 1 h100-80gb, "
        "which offers 73.6 GiB (92% of 80.0 GiB); --tensor-parallel-size 2 would fit"
    )


def test_weights_that_fit_but_leave_nothing_are_said_too() -> None:
    with pytest.raises(
        WeightsDoNotFitError, match=r"21.9 GiB of weights and about 1.5 GiB beside them on each of 1 l4"
    ):
        kv_budget_bytes(
            find_model("gemma-3-12b"), find_gpu("l4"), MemoryOptions(max_num_batched_tokens=2048, max_num_seqs=256)
        )


def test_no_advice_is_given_where_no_number_of_ranks_helps() -> None:
    """40 heads can be split over 8 ranks at most."""
    with pytest.raises(WeightsDoNotFitError, match=r"\(92% of 24.0 GiB\)$"):
        kv_budget_bytes(find_model("llama-4-maverick"), find_gpu("l4"), MemoryOptions())


@pytest.mark.parametrize("utilization", [0, -0.5, 1.2])
def test_a_utilization_that_cannot_be_is_refused(utilization: float) -> None:
    with pytest.raises(ValueError, match="gpu_memory_utilization must be above 0 and at most 1"):
        MemoryOptions(gpu_memory_utilization=utilization)
