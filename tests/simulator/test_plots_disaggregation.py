"""Figures of disaggregated runs: what they show is what the tables say."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator import Scenario
from simulator.deployment import deploy
from simulator.link import Link
from simulator.plots_disaggregation import disaggregation_figures, draw_stages, draw_travelling
from tests.simulator.fleets import row
from tests.simulator.test_disaggregation import run, server


@pytest.fixture(scope="module")
def result():
    rows = [row(str(number), at_s=0.3 * number, prompt=100 + 31 * number, output=20) for number in range(25)]
    return run(rows, [server()], [server(max_num_seqs=3)], Link(8e6, 0.5))[0]


def test_stages_are_stacked_to_the_mean_time_to_first_token(result):
    figure = Figure()
    draw_stages(result, figure)
    (axes,) = figure.axes
    tops = np.array([max(bar.get_y() + bar.get_height() for bars in axes.containers for bar in bars if round(
        bar.get_x() + 0.4) == at) for at in range(10)])  # fmt: skip
    ttft_s = np.sort(result.requests["first_token_s"] - result.requests["arrival_s"])
    assert tops == pytest.approx([group.mean() for group in np.array_split(ttft_s, 10)])


def test_a_disaggregated_run_has_its_figure(result):
    assert disaggregation_figures(result)["stages"].startswith(b"<?xml")


def test_what_travels_is_drawn_beside_what_full_layers_would_send():
    """Gemma-3-27B at 16,000 tokens: ten layers whole and 52 windows, against 62 layers."""
    deployment = deploy(
        Scenario(model="gemma-3-27b", step_time_s=1.0, num_gpu_blocks_override=20_000, max_model_len=20_000)
    )
    figure = Figure()
    draw_travelling({"gemma-3-27b": deployment}, [1600, 16_000], figure)
    full, lean = (line.get_ydata()[-1] for line in figure.axes[0].lines)
    token = 2 * 16 * 128 * 2 / 2**30
    assert full == pytest.approx(62 * 16_000 * token)
    assert lean == pytest.approx((10 * 16_000 + 52 * 1024) * token)
