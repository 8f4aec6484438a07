"""Intervals that hold the truth as often as they say, and a check that tells which queues grow."""

import numpy as np
import pytest

from simulator.confidence import Interval, backlog_share, growth_share, mean_interval
from tests.simulator.queues import said_to_grow

PLANS, SEED = 200, 11


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_a_queue_that_does_not_grow_is_hardly_ever_said_to(load):
    assert said_to_grow(load, 500, PLANS, SEED) <= 0.01


@pytest.mark.parametrize(("load", "num_requests", "at_least"), [(1.05, 500, 0.5), (1.05, 2000, 0.95), (1.2, 500, 0.99)])
def test_a_queue_that_grows_is_seen_the_longer_the_run_the_surer(load, num_requests, at_least):
    assert said_to_grow(load, num_requests, PLANS, SEED) >= at_least


def test_growth_is_the_share_that_cannot_be_served():
    arrivals_s = np.arange(0.0, 100.0)
    assert growth_share(arrivals_s, 5 + arrivals_s * 1.25) == pytest.approx(0.2)


def test_who_comes_all_at_once_is_no_growth():
    assert growth_share(np.zeros(10), np.arange(10.0)) == 0.0


def test_a_t_interval_holds_the_mean_as_often_as_it_says():
    random = np.random.default_rng(5)
    held = [
        abs(interval.mean) <= interval.half for interval in (mean_interval(random.normal(size=6)) for _ in range(2000))
    ]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_interval():
    assert mean_interval([3.0]) == Interval(3.0, 3.0, 3.0)


def test_a_backlog_is_who_came_long_ago_and_still_waits():
    arrivals_s = np.arange(10.0)
    first_tokens_s = arrivals_s + np.array([1, 1, 1, 1, 1, 1, 5, 5, 5, 5.0])
    assert backlog_share(arrivals_s, first_tokens_s) == 0.3  # those of seconds 6, 7 and 8; the last one just came


def test_nobody_or_all_at_once_is_no_backlog():
    assert (backlog_share(np.empty(0), np.empty(0)), backlog_share(np.zeros(3), np.ones(3))) == (0.0, 0.0)
