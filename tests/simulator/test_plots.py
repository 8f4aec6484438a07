"""Figures: what they draw, and that equal runs give equal bytes."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator.plots import draw_kv_usage, draw_latencies, draw_pool_bytes, draw_requests, draw_throughput, figures
from tests.simulator.fake_result import busy_hour, make_requests, make_result, make_steps

ALL = ["kv_usage", "requests", "latencies", "throughput", "pool_bytes"]


def upper_edges(axes) -> list[float]:
    """The highest point of each area of a stack, in the axes' unit."""
    return [float(area.get_paths()[0].vertices[:, 1].max()) for area in axes.collections]


def test_figures_are_svg_and_few_bytes():
    drawn = figures(busy_hour())
    assert list(drawn) == ALL
    assert all(ElementTree.fromstring(svg).tag.endswith("svg") for svg in drawn.values())
    assert sum(map(len, drawn.values())) < 1_000_000


def test_a_long_run_takes_no_more_bytes():
    drawn = figures(busy_hour(num_requests=50_000, num_rows=200_000))
    assert sum(map(len, drawn.values())) < 1_000_000


def test_equal_runs_give_equal_bytes():
    first = figures(busy_hour())
    busy_hour.cache_clear()
    assert figures(busy_hour()) == first


def test_kv_usage_stacks_held_cached_and_free_to_the_whole_pool():
    steps = make_steps(held_blocks=[50, 50], cached_blocks=[25, 25], free_blocks=[50, 50])
    figure = Figure()
    draw_kv_usage(make_result(make_requests(arrival_s=[0.0]), steps, num_blocks=101), figure)
    assert upper_edges(figure.axes[0]) == pytest.approx([50, 75, 100])


def test_cached_blocks_stay_while_nothing_runs():
    """Between 1 s and 9 s no block is held, and the 25 cached ones can still be hit."""
    steps = make_steps(start_s=[0.0, 9.0], end_s=[1.0, 10.0], held_blocks=[50, 50], cached_blocks=[25, 25])
    figure = Figure()
    draw_kv_usage(make_result(make_requests(arrival_s=[0.0]), steps, num_blocks=101), figure)
    held, cached = (area.get_paths()[0] for area in figure.axes[0].collections[:2])
    assert not held.contains_point((5.0, 1.0))
    assert cached.contains_point((5.0, 24.0))
    assert not cached.contains_point((5.0, 26.0))


def test_requests_show_a_short_burst_in_the_band():
    """One step with 40 waiting among 10,000 is no more than a hair in the mean, and seen in the band."""
    waiting = np.zeros(10_000)
    waiting[5000] = 40
    figure = Figure()
    draw_requests(make_result(make_requests(arrival_s=[0.0]), make_steps(waiting=waiting)), figure)
    lower = figure.axes[1]
    assert upper_edges(lower) == [40]
    assert max(lower.lines[0].get_ydata()) < 4


def test_throughput_counts_tokens_of_all_steps_of_a_row():
    """4 steps of 8 decodes in 2 s are 16 tokens a second."""
    steps = make_steps(num_steps=[4], start_s=[0.0], end_s=[2.0], num_decodes=[8], prefill_tokens=[100])
    figure = Figure()
    draw_throughput(make_result(make_requests(arrival_s=[0.0]), steps), figure)
    rates = [axes.patches[0].get_data().values for axes in figure.axes]
    assert [rate.max() for rate in rates] == pytest.approx([50.0, 16.0])


def test_latency_titles_state_median_and_tail():
    requests = make_requests(arrival_s=np.zeros(101), first_token_s=np.arange(101) / 100 + 1)
    figure = Figure()
    draw_latencies(make_result(requests, make_steps(running=[1])), figure)
    assert figure.axes[0].get_title() == "Time to first token: p50 1.5 s (dashed), p99 1.99 s (dotted)"


def test_pool_bytes_fill_the_pool():
    result = busy_hour()
    figure = Figure()
    draw_pool_bytes(result, figure)
    assert upper_edges(figure.axes[0])[-1] == pytest.approx(result.capacity["pool_bytes"] / 2**30)


def test_without_samples_there_is_no_figure_of_bytes():
    steps = make_steps(running=[1, 1], held_blocks=[3, 3])
    assert "pool_bytes" not in figures(make_result(make_requests(arrival_s=[0.0]), steps))


def test_an_empty_run_has_no_figures():
    assert figures(make_result(make_requests(arrival_s=[]), make_steps(running=[]))) == {}


def test_nothing_is_drawn_before_it_is_asked_for():
    """The command line starts without matplotlib and jinja2."""
    program = "import sys, simulator.report; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
