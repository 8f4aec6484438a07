"""Step times: the roofline against bounds, measurements and itself."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_configs import Layer, Model, find_model
from models_configs.attention import FullAttention, SlidingWindowAttention
from simulator.batch import Batch
from simulator.efficiencies import Efficiencies, efficiencies_of
from simulator.hardware import find_gpu
from simulator.latency import ConstantStepTimes
from simulator.roofline import Roofline

NAMES = ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "llama-4-scout", "jamba-v0.1"]


def defaults(gpu: str = "h100-80gb") -> Efficiencies:
    return efficiencies_of(find_gpu(gpu), async_scheduling=True)


@cache
def roofline(name: str, gpu: str = "h100-80gb", tensor_parallel: int = 1) -> Roofline:
    return Roofline(find_model(name), find_gpu(gpu), tensor_parallel)


def decodes(model: Model, contexts: list[int], num_steps: int = 1) -> Batch:
    """One token each after these contexts; the row must not cross a chunk's border or fill a window."""
    seen = [[reach.seen_before(context) for context in contexts] for reach in model.reaches]
    later = [[reach.seen_before(context + 1) for context in contexts] for reach in model.reaches]
    return Batch(
        prefill_chunks=(),
        num_decodes=len(contexts),
        decode_context_tokens=sum(contexts),
        decode_window_tokens=tuple(map(sum, seen)),
        decode_window_growth=tuple(sum(after) - sum(now) for now, after in zip(seen, later, strict=True)),
        num_steps=num_steps,
    )


def decode_ms(name: str, contexts: list[int], gpu: str = "h100-80gb", tensor_parallel: int = 1) -> float:
    (duration_s,) = roofline(name, gpu, tensor_parallel).durations_s(decodes(find_model(name), contexts))
    return 1e3 * float(duration_s)


def prefill_ms(name: str, *chunks: tuple[int, int], gpu: str = "h100-80gb", tensor_parallel: int = 1) -> float:
    (duration_s,) = roofline(name, gpu, tensor_parallel).durations_s(Batch(chunks, 0, 0))
    return 1e3 * float(duration_s)


def test_constant_times_ignore_the_work() -> None:
    assert ConstantStepTimes(0.5).durations_s(Batch(((7, 0),), 3, 900, num_steps=4)) == [0.5] * 4


# Against what must be so


def test_a_lone_decode_reads_the_weights_and_little_else() -> None:
    """Llama-3.1-8B reads all but its token embedding: 15.0 GB at 3,350 GB/s take 4.5 ms."""
    assert 4.5 < decode_ms("llama-3.1-8b", [1]) < 7.1


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    """8,192 tokens through 7.0 billion weights and 32 triangles of attention at 989 TFLOP/s."""
    linear_flops = 8192 * 2 * 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336)
    attention_flops = 32 * 4 * 32 * 128 * 8192 * 8193 / 2
    bound_ms = 1e3 * (linear_flops + attention_flops) / 989e12
    assert 1.4 * bound_ms < prefill_ms("llama-3.1-8b", (8192, 0)) < 1.6 * bound_ms


def test_windows_make_long_contexts_cheap() -> None:
    """Gemma-3 without windows would read six times as much KV of each of these requests."""
    gemma = find_model("gemma-3-27b")

    def without_window(layer: Layer) -> Layer:
        (mixer,) = layer.mixers
        assert isinstance(mixer, FullAttention | SlidingWindowAttention)
        return replace(layer, mixers=(FullAttention(mixer.heads),))

    all_full = replace(gemma, layers=tuple(map(without_window, gemma.layers)))
    contexts = [30_000] * 8
    as_is_s, all_full_s = (
        Roofline(model, find_gpu("h200")).durations_s(decodes(model, contexts))[0] for model in (gemma, all_full)
    )
    saved_bytes = 8192 * 52 * 8 * (30_000 - 1023)
    assert all_full_s - as_is_s == pytest.approx(saved_bytes / (4800e9 * defaults("h200").kv_bandwidth))


def test_chunks_forget_at_their_border() -> None:
    assert decode_ms("llama-4-scout", [8192]) < decode_ms("llama-4-scout", [8191])


def test_a_state_makes_the_context_free() -> None:
    """In Jamba 4 of 32 layers attend: 131,000 more tokens of context read 2.1 GB more."""
    more_ms = decode_ms("jamba-v0.1", [131_000], "h200") - decode_ms("jamba-v0.1", [0], "h200")
    assert more_ms == pytest.approx(1e3 * 131_000 * 4096 * 4 / (4800e9 * defaults("h200").kv_bandwidth))


@pytest.mark.parametrize("name", NAMES)
def test_two_gpus_are_faster_than_one_but_not_twice(name: str) -> None:
    for one_ms, two_ms in (
        (decode_ms(name, [2000] * 32), decode_ms(name, [2000] * 32, tensor_parallel=2)),
        (prefill_ms(name, (8192, 0)), prefill_ms(name, (8192, 0), tensor_parallel=2)),
    ):
        assert one_ms / 2 < two_ms < one_ms


def test_a_slow_link_eats_the_gain() -> None:
    """Over PCIe a prompt's all-reduces cost more than the second card saves over NVLink."""
    llama, nvlink = find_model("llama-3.1-8b"), find_gpu("a100-80gb")
    pcie = replace(nvlink, interconnect_bytes_per_s=32e9)
    slow_s, fast_s = (Roofline(llama, gpu, 2).durations_s(Batch(((8192, 0),), 0, 0))[0] for gpu in (pcie, nvlink))
    all_reduced_bytes = 65 * 8192 * 4096 * 2
    extra_s = all_reduced_bytes * (1 / 32e9 - 1 / 300e9) / defaults("a100-80gb").link_bandwidth
    assert slow_s - fast_s == pytest.approx(extra_s, rel=0.01)


def test_few_tokens_read_few_experts() -> None:
    """One token of gpt-oss-20b reads 4 of 32 experts, 64 tokens read nearly all."""
    one_ms, many_ms = (decode_ms("gpt-oss-20b", [0] * num_tokens) for num_tokens in (1, 64))
    experts_bytes = 24 * 28 * (3 * 2880 * 2880 * 17 // 32 + 2 * 3 * 2880)
    assert many_ms - one_ms == pytest.approx(1e3 * experts_bytes / (3350e9 * defaults().expert_bandwidth), rel=0.1)


# Against servers


@pytest.mark.parametrize(
    ("gpu", "tensor_parallel", "num_requests", "tpot_ms"),
    [
        ("h100-80gb", 2, 4, 4.96),
        ("h100-80gb", 2, 64, 14.38),
        ("h100-80gb", 8, 4, 3.63),
        ("h100-80gb", 8, 64, 7.08),
        ("h200", 1, 8, 8.67),
        ("h200", 1, 64, 23.44),
        ("b200", 4, 32, 5.40),
        ("b200", 8, 64, 5.47),
    ],
)
def test_gpt_oss_120b_decodes_as_fast_as_measured(
    gpu: str, tensor_parallel: int, num_requests: int, tpot_ms: float
) -> None:
    """Time per output token of vLLM 0.15 to 0.18 with 1,024 tokens in and 8,192 out, so prompts hardly count.

    From silicon_sample.csv in PyPI aiconfigurator-core 0.12.0; contexts are taken at their mean.
    """
    computed_ms = decode_ms("gpt-oss-120b", [1024 + 4096] * num_requests, gpu, tensor_parallel)
    assert computed_ms == pytest.approx(tpot_ms, rel=0.25)


# Against itself


@pytest.mark.parametrize("name", NAMES)
@given(
    # below every window, or past it within a chunk: what each sum grows by stays the same for the row
    contexts=st.lists(st.integers(0, 60) | st.integers(1100, 8000), min_size=1, max_size=20),
    num_steps=st.integers(1, 60),
)
def test_a_row_of_steps_takes_as_long_as_its_steps_one_by_one(name: str, contexts: list[int], num_steps: int) -> None:
    model = find_model(name)
    in_a_row = roofline(name).durations_s(decodes(model, contexts, num_steps))
    one_by_one = [
        roofline(name).durations_s(decodes(model, [context + step for context in contexts]))[0]
        for step in range(num_steps)
    ]
    np.testing.assert_allclose(in_a_row, one_by_one, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(num_new=st.integers(1, 4000), num_computed=st.integers(0, 8000), context=st.integers(0, 8000))
def test_more_work_never_takes_less_time(name: str, num_new: int, num_computed: int, context: int) -> None:
    """Add a decode, another, then a prompt's token, then a second prompt."""
    model = find_model(name)
    one, two = (decodes(model, [context] * n) for n in (1, 2))
    prefills = [((num_new, num_computed),), ((num_new + 1, num_computed),), ((num_new + 1, num_computed), (1, 0))]
    batches = [one, two, *(two._replace(prefill_chunks=chunks) for chunks in prefills)]
    durations_s = [float(roofline(name).durations_s(batch)[0]) for batch in batches]
    assert all(shorter < longer for shorter, longer in pairwise(durations_s))


@pytest.mark.parametrize("name", NAMES)
@given(
    contexts=st.lists(st.integers(0, 8000), max_size=20),
    chunks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 6000)), max_size=3),
)
def test_parts_add_up_to_the_step(name: str, contexts: list[int], chunks: list[tuple[int, int]]) -> None:
    batch = decodes(find_model(name), contexts)._replace(prefill_chunks=tuple(chunks))
    parts_s = roofline(name, tensor_parallel=2).parts_s(batch)
    assert sum(parts_s.values()) == pytest.approx(roofline(name, tensor_parallel=2).durations_s(batch)[0])


def test_a_prompt_in_pieces_takes_longer_than_at_once() -> None:
    """The arithmetic is the same, the fixed costs are not, and weights are read four times."""
    in_pieces_ms = sum(prefill_ms("llama-3.1-8b", (2048, computed)) for computed in range(0, 8192, 2048))
    at_once_ms = prefill_ms("llama-3.1-8b", (8192, 0))
    fixed_ms = 1e3 * (defaults().step_s + 32 * defaults().layer_s)
    assert 3 * fixed_ms < in_pieces_ms - at_once_ms < 3 * (fixed_ms + decode_ms("llama-3.1-8b", [1]))


def test_sums_of_the_wrong_reaches_are_refused() -> None:
    """A batch made for another model would silently cost nothing."""
    with pytest.raises(ValueError, match="zip"):
        roofline("gemma-3-27b").durations_s(Batch((), 2, 100))


def test_a_better_server_is_faster() -> None:
    llama, h100 = find_model("llama-3.1-8b"), find_gpu("h100-80gb")
    batch = decodes(llama, [1000] * 8)
    default_s, better_s = (
        Roofline(llama, h100, efficiencies=efficiencies).durations_s(batch)[0]
        for efficiencies in (None, replace(defaults(), step_s=0))
    )
    assert default_s - better_s == pytest.approx(defaults().step_s)


def test_fp8_kv_is_read_in_half_the_time() -> None:
    llama, h100 = find_model("llama-3.1-8b"), find_gpu("h100-80gb")
    batch, nothing = decodes(llama, [30_000]), decodes(llama, [0])
    extra_s = []
    for dtype in ("auto", "fp8"):
        step_times = Roofline(llama, h100, kv_cache_dtype=dtype)
        extra_s.append(step_times.durations_s(batch)[0] - step_times.durations_s(nothing)[0])
    assert extra_s[0] == pytest.approx(2 * extra_s[1])
