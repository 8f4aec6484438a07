"""A calibration as a picture: each kind has its colour and its marker, and no error is lost."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator.calibration import Spans
from simulator.plots import as_png
from simulator.plots_calibration import HEIGHT_INCHES, draw_fit
from tests.simulator.measured_steps import decode, mixed, prefill

BATCHES = [decode(4, 100), decode(8, 100), prefill((100, 0)), mixed(50, 4, 100)]
SPANS = Spans.of_steps(BATCHES, [0.010, 0.012, 0.02, 0.03])
PREDICTED_S = np.array([0.011, 0.012, 0.04, 0.03])


@pytest.fixture
def panels():
    figure = Figure()
    draw_fit(SPANS, PREDICTED_S, figure)
    return figure.axes


def test_predicted_stands_over_measured_for_each_kind(panels):
    points = [scatter.get_offsets().tolist() for scatter in panels[0].collections]
    assert points == [
        [pytest.approx([10, 11]), pytest.approx([12, 12])],
        [pytest.approx([20, 40])],
        [pytest.approx([30, 30])],
    ]


def test_kinds_differ_in_colour_and_in_marker(panels):
    scatters = panels[0].collections
    assert len({tuple(scatter.get_facecolor()[0]) for scatter in scatters}) == 3
    assert len({len(scatter.get_paths()[0].vertices) for scatter in scatters}) == 3


def test_errors_beyond_the_panel_are_drawn_at_its_edge(panels):
    """A step predicted twice as long as it was: 30 % is as far as it goes."""
    heights = [height for scatter in panels[1].collections for height in np.atleast_2d(scatter.get_offsets())[:, 1]]
    assert max(heights) == 30
    assert [label.get_text() for label in panels[1].get_xticklabels()] == ["decode only", "prefill only", "mixed"]


def test_equal_data_give_equal_bytes():
    pictures = {as_png(lambda figure: draw_fit(SPANS, PREDICTED_S, figure), HEIGHT_INCHES) for _ in range(2)}
    assert len(pictures) == 1
