"""How far a run is, on standard error and nowhere else."""

import pytest

from simulator import Scenario
from simulator.progress import PointsProgress, RunProgress


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 120 columns, and a clock that the test moves."""
    now = [0.0]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("simulator.progress.time.monotonic", lambda: now[0])
    return now


def test_a_bar_shows_requests_simulated_time_and_speed(terminal, capsys):
    with RunProgress(Scenario(model="m", num_requests=400), shown=True) as progress:
        terminal[0] = 2.0
        progress.update(now_s=90.0, num_ended=100)
    printed = capsys.readouterr()
    assert "100 requests, 90 s simulated, 50/s" in printed.err
    assert printed.out == ""


def test_long_simulated_times_are_minutes(terminal, capsys):
    with RunProgress(Scenario(model="m", num_requests=400), shown=True) as progress:
        terminal[0] = 2.0
        progress.update(now_s=3600.0, num_ended=100)
    assert "60.0 min simulated" in capsys.readouterr().err


def test_updates_in_quick_succession_cost_nothing(terminal, capsys):
    """The bar is drawn ten times a second at most, however often it is told."""
    with RunProgress(Scenario(model="m", num_requests=400), shown=True) as progress:
        for num_ended in range(1, 100):
            terminal[0] += 0.0001
            progress.update(now_s=1.0, num_ended=num_ended)
    assert "99 requests" not in capsys.readouterr().err


def test_nothing_is_shown_where_nobody_asked(terminal, capsys):
    with RunProgress(Scenario(model="m", num_requests=400), shown=False) as progress:
        terminal[0] = 2.0
        progress.update(now_s=90.0, num_ended=100)
    assert capsys.readouterr() == ("", "")


def test_it_hands_on_the_workload_that_it_counts():
    """Read once: the run replays the same trace."""
    progress = RunProgress(Scenario(model="m", num_requests=3), shown=False)
    assert len(list(progress.trace)) == 3


def test_a_study_shows_points_done_running_and_lost(terminal, capsys):
    """Those that were kept from before count as done."""
    with PointsProgress("blocks", num_points=12, num_kept=3, shown=True) as progress:
        progress.running(2)
        progress.ended(has_finished=True)
        progress.ended(has_finished=False)
    printed = capsys.readouterr()
    assert "Study blocks" in printed.err
    assert "5 of 12 points, 2 running" in printed.err
    assert "1 refused or failed" in printed.err
    assert printed.out == ""
