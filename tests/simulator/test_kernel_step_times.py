"""Steps put together from kernels: which run, how often, and what a row of steps takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_configs import find_model
from simulator.batch import Batch
from simulator.efficiencies import Efficiencies, efficiencies_of
from simulator.hardware import find_gpu
from simulator.kernel_step_times import KernelStepTimes
from simulator.kernel_tables import Curve, Kernels, Surface
from simulator.roofline import Roofline

HOST = Efficiencies(step_s=0.5, request_s=0.25)
FLOOR = 7.0
"""What attention of a prompt takes whatever it computes."""

KERNELS = Kernels(
    decode=Curve(lambda num: 1e3 * num),
    prefill=Curve(lambda num: 1e4 * num),
    logits=Curve(lambda num: 1e2 * num),
    prefill_attention=Surface(lambda new, before: FLOOR + new * before),
    decode_attention=((None, Surface(lambda num, seen: num * seen)), (0, Surface(lambda num, seen: 10.0 * num * seen))),
)
PEAKS = Roofline(find_model("llama-3.1-8b"), find_gpu("h100-80gb"), 1, "auto", Efficiencies.at_peak())
TIMES = KernelStepTimes(KERNELS, PEAKS, HOST, "made up")


def test_a_step_of_decodes_runs_their_own_kernels() -> None:
    """Three requests after 300 tokens in all, of which the window shows 30: each sees itself too."""
    batch = Batch((), 3, 300, (30,), (0,))
    attention_s = 3 * (100 + 1) + 10 * 3 * (10 + 1)
    assert TIMES.durations_s(batch) == [pytest.approx(0.5 + 3 * 0.25 + 3000 + 300 + attention_s)]


def test_prompts_share_one_launch_of_attention() -> None:
    batch = Batch(((4, 10), (6, 0)), 0, 0, (0,), (0,))
    attention_s = FLOOR + 4 * 10
    assert TIMES.durations_s(batch) == [pytest.approx(0.5 + 2 * 0.25 + 1e5 + 200 + attention_s)]


def test_a_mixed_step_passes_all_its_tokens_through_the_prompts_kernels() -> None:
    batch = Batch(((5, 0),), 2, 20, (20,), (0,))
    attention_s = FLOOR + 2 * 11 + 10 * 2 * 11
    assert TIMES.durations_s(batch) == [pytest.approx(0.5 + 3 * 0.25 + 7e4 + 300 + attention_s)]


@given(
    num_decodes=st.integers(1, 64), context=st.integers(0, 60), growth=st.integers(0, 1), num_steps=st.integers(1, 40)
)
def test_a_row_of_steps_takes_as_long_as_its_steps_one_by_one(
    num_decodes: int, context: int, growth: int, num_steps: int
) -> None:
    def after(step: int, rows: int = 1) -> Batch:
        seen = num_decodes * (context + step * growth)
        return Batch((), num_decodes, num_decodes * (context + step), (seen,), (num_decodes * growth,), rows)

    one_by_one = [TIMES.durations_s(after(step))[0] for step in range(num_steps)]
    assert TIMES.durations_s(after(0, num_steps)) == pytest.approx(one_by_one)


def test_synchronous_scheduling_shows_the_hosts_work() -> None:
    h100 = find_gpu("h100-80gb")
    hidden, shown = (
        KernelStepTimes(KERNELS, PEAKS, efficiencies_of(h100, async_scheduling=is_async), "made up")
        for is_async in (True, False)
    )
    few, many = Batch((), 1, 10, (10,), (0,)), Batch((), 64, 640, (640,), (0,))
    few_s, many_s = (shown.durations_s(batch)[0] - hidden.durations_s(batch)[0] for batch in (few, many))
    assert 0 < few_s < many_s
