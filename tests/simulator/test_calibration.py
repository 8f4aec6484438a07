"""The fit finds what a server reaches, whatever hides it, and says what it cannot find."""

from dataclasses import asdict, replace
from functools import cache
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibration import Fit, Spans, fit_efficiencies
from simulator.efficiencies import PRICED, SHARES, Efficiencies
from simulator.latency import Work
from tests.simulator.measured_steps import ACHIEVED, decode, mixed, prefill, roofline_of, steps

FITTED = ("matmul_compute", "prefill_attention_compute", "weight_bandwidth", "kv_bandwidth", "link_bandwidth", "step_s")


def measured(batches, achieved: Efficiencies = ACHIEVED, tensor_parallel: int = 1) -> np.ndarray:
    server = roofline_of(tensor_parallel=tensor_parallel)(achieved)
    return np.array([server.durations_s(batch)[0] for batch in batches])


def fitted(batches, seconds, tensor_parallel: int = 1, **how) -> Fit:
    return fit_efficiencies(roofline_of(tensor_parallel=tensor_parallel), Spans.of_steps(batches, seconds), **how)


def relative_to(achieved: Efficiencies, fit: Fit, names=FITTED) -> np.ndarray:
    return np.array([getattr(fit.efficiencies, name) / getattr(achieved, name) for name in names])


@cache
def noisy() -> Fit:
    """Timers are not exact."""
    noise = np.random.default_rng(5).normal(1, 0.02, 300)
    return fitted(steps(), measured(steps()) * noise)


# What it finds


def test_exact_steps_give_their_efficiencies_back():
    """Two ranks, so that links count too."""
    fit = fitted(steps(), measured(steps(), tensor_parallel=2), tensor_parallel=2, own_error=0.0)
    assert relative_to(ACHIEVED, fit, (*FITTED, "request_layer_s")) == pytest.approx(1, rel=1e-3)
    assert fit.efficiencies.matmul_overlap == ACHIEVED.matmul_overlap


@pytest.mark.parametrize("overlap", [inf, 4.0, 2.0, 1.5])
def test_a_bend_from_reading_to_arithmetic_is_found(overlap):
    achieved = replace(ACHIEVED, matmul_overlap=overlap)
    fit = fitted(steps(), measured(steps(), achieved), own_error=0.0)
    assert fit.efficiencies.matmul_overlap == overlap
    assert relative_to(achieved, fit, ("matmul_compute", "weight_bandwidth")) == pytest.approx(1, rel=1e-3)


def test_noise_moves_the_large_figures_by_a_few_percent():
    """Reading weights most: where it bends into arithmetic the two are told apart less sharply."""
    names = ("matmul_compute", "kv_bandwidth", "weight_bandwidth")
    assert relative_to(ACHIEVED, noisy(), names) == pytest.approx(1, rel=0.08)
    assert relative_to(ACHIEVED, noisy(), names[:1]) == pytest.approx(1, rel=0.04)


def test_noise_hardly_moves_what_is_predicted():
    """Figures make up for one another; the sum is what counts."""
    other = steps(seed=2)
    assert np.abs(measured(other, noisy().efficiencies) / measured(other) - 1).max() < 0.02


def test_pauses_do_not_move_the_fit():
    """One step in twenty takes five times as long: somebody collected garbage."""
    draw = np.random.default_rng(6)
    seconds = measured(steps()) * np.where(draw.random(300) < 0.05, 5.0, draw.normal(1, 0.01, 300))
    fit = fitted(steps(), seconds)
    other = steps(seed=2)
    assert np.abs(measured(other, fit.efficiencies) / measured(other) - 1).max() < 0.03


def test_spans_of_several_steps_do_as_well():
    """Nobody timed a step, only ten in a row, from the middle of one to the middle of another."""
    batches = steps()
    ends_s = np.concatenate([[0.0], np.cumsum(measured(batches))])
    begins = np.arange(0.5, 288.0, 2.0)
    spans_s = np.interp(begins + 10, range(301), ends_s) - np.interp(begins, range(301), ends_s)
    spans = Spans(batches, begins, begins + 10, spans_s, ["ten steps"] * len(begins))
    fit = fit_efficiencies(roofline_of(), spans, own_error=0.0)
    assert relative_to(ACHIEVED, fit, ("matmul_compute", "weight_bandwidth", "kv_bandwidth")) == pytest.approx(
        1, rel=1e-3
    )


# What it cannot find


def test_what_takes_no_time_keeps_its_default():
    """One rank of a dense model has neither links nor experts nor scans."""
    fit = fitted(steps(), measured(steps()))
    of_others = ("link_bandwidth", "all_reduce_s", "expert_bandwidth", "expert_compute", "scan_compute")
    assert [fit.kept[name] for name in of_others] == ["takes hardly any of the measured time"] * 5
    assert [getattr(fit.efficiencies, name) for name in of_others] == [
        getattr(Efficiencies(), name) for name in of_others
    ]


def test_costs_that_always_come_together_are_fitted_as_one():
    """A step's cost and 32 layers' are one constant: the first takes all, and predictions are right."""
    achieved = replace(ACHIEVED, layer_s=50e-6)
    fit = fitted(steps(), measured(steps(), achieved), own_error=0.0)
    assert fit.kept["layer_s"] == "cannot be told from the others"
    assert fit.efficiencies.step_s == pytest.approx(ACHIEVED.step_s + 32 * (50e-6 - Efficiencies().layer_s), rel=1e-2)


def test_equal_steps_tell_one_figure():
    """Where every step is the same, weights take the blame."""
    batches = [decode(32, 1000)] * 50
    fit = fitted(batches, 1.1 * measured(batches, Efficiencies()))
    assert sorted(set(PRICED) - fit.kept.keys()) == ["weight_bandwidth"]
    assert fit.predicted_s == pytest.approx(1.1 * measured(batches, Efficiencies()), rel=2e-2)


def test_more_than_the_peak_is_doubtful():
    """Whoever states half of a GPU's bandwidth finds servers that outrun it; the fit ends at 1.2 times the peak."""
    batches = [decode(requests, context) for requests in range(1, 60, 3) for context in (100, 1000, 3000)]
    fit = fitted(batches, measured(batches, Efficiencies(weight_bandwidth=1.7, kv_bandwidth=1.5)))
    assert fit.doubtful == ["weight_bandwidth", "kv_bandwidth"]
    assert fit.efficiencies.weight_bandwidth == pytest.approx(1.2)


@given(st.lists(st.sampled_from(steps(40, seed=3)), min_size=1, max_size=12), st.floats(0.2, 5))
def test_figures_stay_within_what_a_file_may_say(batches, factor):
    fit = fitted(batches, factor * measured(batches, Efficiencies()), overlaps=(inf, 2.0))
    values = asdict(fit.efficiencies)
    assert all(0 < values[name] <= 1.2 + 1e-9 if name in SHARES else values[name] >= 0 for name in PRICED)


# The bend in the roofline


@pytest.mark.parametrize("overlap", [1.0, 1.5, 3.0, inf])
@given(st.lists(st.sampled_from([*steps(40, seed=4), mixed(200, 64, 500), prefill((64, 0), (64, 0))]), min_size=1))
def test_no_steps_are_faster_than_the_bound(overlap, batches):
    """The triangle inequality: however the work is cut into steps, the bound of all of it holds."""
    server = roofline_of()(replace(ACHIEVED, matmul_overlap=overlap))
    work = Work(
        num_steps=len(batches),
        num_tokens=sum(batch.num_tokens for batch in batches),
        num_rows=sum(batch.num_decodes + len(batch.prefill_chunks) for batch in batches),
        max_step_tokens=max(batch.num_tokens for batch in batches),
        prefill_pairs=(sum(new * done + new * (new + 1) // 2 for b in batches for new, done in b.prefill_chunks),),
        decode_reads=(sum(batch.decode_context_tokens + batch.num_decodes for batch in batches),),
        num_decodes=sum(batch.num_decodes for batch in batches),
    )
    seconds = sum(server.durations_s(batch)[0] for batch in batches)
    assert server.least_s(work) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("overlap", [1.0, 1.5, 3.0, 200.0])
@given(batch=st.sampled_from(steps(60, seed=7)))
def test_parts_add_up_to_a_step_that_bends(overlap, batch):
    server = roofline_of("gpt-oss-20b")(replace(ACHIEVED, matmul_overlap=overlap))
    windows = (0,) * 1
    batch = batch._replace(decode_window_tokens=windows, decode_window_growth=windows)
    assert sum(server.parts_s(batch).values()) == pytest.approx(server.durations_s(batch)[0])


def test_the_less_reading_and_arithmetic_overlap_the_longer_a_step_takes():
    seconds = [measured([decode(200, 100)], replace(ACHIEVED, matmul_overlap=each))[0] for each in (inf, 3.0, 1.5, 1.0)]
    assert seconds == sorted(set(seconds))
