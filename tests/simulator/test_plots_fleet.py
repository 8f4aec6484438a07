"""The figure of a fleet: a line for each replica, or a band where they are many."""

from collections import Counter

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator import Scenario, simulate
from simulator.fleet import simulate_fleet
from simulator.fleet_history import num_over_time
from simulator.lives import State
from simulator.operations import Operations
from simulator.outages import Drain, Outage
from simulator.plots import LINE_COLOURS, figures
from simulator.plots_fleet import draw_replicas, draw_states, fleet_figures, hit_rate_over_time
from simulator.report import render_report
from simulator.router import RoundRobin
from simulator.summary_table import format_number
from tests.simulator.fake_result import make_requests

SERVER = Scenario(model="gemma-3-1b", gpu="l4", max_model_len=8192, num_requests=40)


def drawn(num_replicas: int) -> Figure:
    figure = Figure()
    draw_replicas(simulate_fleet([SERVER] * num_replicas, RoundRobin()), figure)
    return figure


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_each_replica_has_its_line():
    figure = drawn(3)
    assert labels(figure) == ["replica 0", "replica 1", "replica 2"]
    assert [line.get_color() for line in figure.axes[0].lines] == list(LINE_COLOURS[:3])


def test_colours_come_again_with_dashes():
    lines = drawn(8).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8


def test_many_replicas_are_a_band():
    figure = drawn(13)
    assert labels(figure) == ["least to most", "mean of 13 replicas"]
    assert all(len(axes.lines) == 1 for axes in figure.axes)


def test_the_hit_rate_is_that_of_the_tokens_admitted_in_a_bin():
    requests = make_requests(
        arrival_s=[0.0, 1.0, 1.5, 9.0], prompt_tokens=[10, 30, 10, 20], cached_tokens=[0, 10, 0, 20]
    )
    shares = hit_rate_over_time(requests, np.array([0.0, 1.0, 2.0, 3.0, 10.0]))
    assert shares == pytest.approx([0, 0.25, np.nan, 1], nan_ok=True)


def test_only_a_fleet_has_it():
    fleet, single = simulate_fleet([SERVER] * 2, RoundRobin()), simulate(SERVER)
    assert (list(fleet_figures(fleet)), list(fleet_figures(single))) == (["replicas"], [])
    assert list(figures(fleet)) == ["latencies"]


def test_equal_fleets_give_equal_bytes():
    first, second = (fleet_figures(simulate_fleet([SERVER] * 2, RoundRobin())) for _ in range(2))
    assert first == second


# What replicas were when


@pytest.fixture(scope="module")
def operated():
    """Two of three are there from the beginning to the end; one fails, comes back, and is drained."""
    operations = Operations(outages=(Outage(1, 2.0, 3.0),), drains=(Drain(1, 8.0),), cold_start_s=2.0)
    scenario = SERVER.model_copy(update={"step_time_s": 0.05})
    return simulate_fleet([scenario] * 3, RoundRobin(), operations=operations)


def test_each_state_of_each_replica_is_a_bar(operated):
    figure = Figure()
    draw_states(operated, figure)
    upper, lower = figure.axes
    assert labels(figure) == ["paid for", "up", "booting", "draining", "failed"]
    states = Counter(operated.tables["states"]["state"])
    bars = {container.get_label(): len(container) for container in lower.containers}
    assert bars == {state: states[state] for state in ("up", "booting", "draining", "failed")}
    assert (bars["up"], bars["booting"], bars["failed"]) == (4, 1, 1)
    assert lower.get_ylim() == (2.5, -0.5)
    (paid,) = upper.patches
    assert paid.get_data().values.tolist()[:3] == [3, 2, 3]


def test_the_number_of_replicas_is_that_of_the_states(operated):
    states = operated.tables["states"]
    since_s, num = num_over_time(states, frozenset({State.UP}))
    assert (since_s[:4].round(6).tolist(), num[:4].tolist()) == (
        [float(states["start_s"].min().round(6)), 2.0, 7.0, 8.0], [3, 2, 3, 2],
    )  # fmt: skip


def test_only_a_fleet_that_may_change_has_states(operated):
    assert list(fleet_figures(operated)) == ["replicas", "states"]


def test_a_report_draws_and_tells_it(operated):
    report = render_report(operated)
    up = operated.summary["operations"]["replicas_up"]
    assert f"replicas up {format_number(up['mean'])} on average, 3 at most" in report
