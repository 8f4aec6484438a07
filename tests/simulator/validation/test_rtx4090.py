"""A measured run of vLLM on an RTX 4090, replayed: it needs the measurements in ../shared/data."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator.validation.plots_rtx4090 import draw_series
from simulator.validation.rtx4090 import WAYS, Rtx4090Run, Validation, validate

BAR = 0.02
"""Of each measure: what a prediction may be off."""
MEASURED = {
    "Makespan": 183.6, "Output throughput": 1066.4, "TTFT mean": 65.46, "TTFT p50": 60.11, "TPOT mean": 32.45,
    "E2E mean": 86.58,
}  # fmt: skip


@cache
def validated(data: Path, way: str) -> Validation:
    run = Rtx4090Run(data)
    return validate(run, WAYS[way](run))


def test_what_was_measured(shared_data):
    measures = validated(shared_data, "kernels").measures
    assert {measure.name: measure.measured for measure in measures} == pytest.approx(MEASURED, rel=1e-3)


@pytest.mark.parametrize("way", list(WAYS)[:3])
def test_the_replay_meets_every_measure(shared_data, way):
    """With step times into which none of these measures went."""
    errors = {measure.name: measure.error for measure in validated(shared_data, way).measures}
    assert errors == pytest.approx(dict.fromkeys(MEASURED, 0.0), abs=BAR)


def test_figures_of_another_gpu_do_not(shared_data):
    """The roofline's defaults are an H100's: calibration is what makes the difference."""
    errors = [abs(measure.error) for measure in validated(shared_data, "roofline as it comes").measures]
    assert min(errors) > 0.05


@pytest.mark.parametrize("way", list(WAYS)[:3])
def test_the_replay_goes_the_same_way_through_time(shared_data, way):
    """Second by second: running requests within three on average, the pool within two percent of its blocks."""
    run = validated(shared_data, way)
    at = run.measured.time_s

    def off(measured: np.ndarray, predicted: np.ndarray) -> float:
        return float(np.mean(np.abs(measured - np.interp(at, run.predicted.time_s, predicted))))

    assert off(run.measured.running, run.predicted.running) < 3
    assert off(run.measured.kv_usage, run.predicted.kv_usage) < 0.02


def test_the_pool_is_what_binds(shared_data):
    """Requests wait for blocks, not for seats: the pool is full and at most 50 of 256 run."""
    run = validated(shared_data, "kernels")
    assert run.num_preemptions > 100
    assert run.predicted.running.max() == pytest.approx(run.measured.running.max(), abs=2)


def test_both_are_drawn_over_time(shared_data):
    figure = Figure()
    draw_series(validated(shared_data, "kernels"), figure)
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
