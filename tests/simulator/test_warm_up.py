"""The first requests to arrive count in no latency, if so many are named."""

import numpy as np
import pytest

from simulator import Scenario, simulate
from simulator.metrics import distribution, times_to_first_token_s

SERVER = {"model": "llama-3.1-8b", "gpu": "h100-80gb"}
LOOP = {**SERVER, "concurrency": 8, "input_len": 500, "output_len": 20, "num_requests": 40}


def ttft_of(requests, num_left_out):
    """TTFT without the first to arrive."""
    kept = requests.sort_values("arrival_s", kind="stable").iloc[num_left_out:]
    return distribution(times_to_first_token_s({name: kept[name].to_numpy() for name in kept}))


def test_a_closed_loop_leaves_out_those_that_arrived_at_once():
    result = simulate(Scenario(**LOOP))
    assert result.summary["requests"]["left_out"] == 8
    assert result.summary["ttft_s"]["mean"] == pytest.approx(ttft_of(result.requests, 8)["mean"], rel=1e-5)
    assert result.summary["ttft_s"]["mean"] < ttft_of(result.requests, 0)["mean"]


def test_none_are_left_out_if_none_are_named():
    result = simulate(Scenario(**LOOP, num_warmups=0))
    assert "left_out" not in result.summary["requests"]
    assert result.summary["ttft_s"]["mean"] == pytest.approx(ttft_of(result.requests, 0)["mean"], rel=1e-5)


def test_open_traffic_leaves_out_what_is_named():
    steady = {**SERVER, "request_rate": 4.0, "input_len": 500, "output_len": 20, "num_requests": 40}
    everything, later = (simulate(Scenario(**steady, num_warmups=number)) for number in (None, 10))
    assert "left_out" not in everything.summary["requests"]
    assert later.summary["requests"]["left_out"] == 10
    assert later.summary["ttft_s"]["mean"] == pytest.approx(ttft_of(everything.requests, 10)["mean"], rel=1e-5)


def test_where_all_are_warm_up_nothing_is_measured():
    summary = simulate(Scenario(**LOOP, num_warmups=40)).summary
    assert summary["ttft_s"]["mean"] is None
    assert summary["requests"]["finished"] == 40


def test_a_fleet_leaves_out_the_same_requests():
    from simulator.fleet import simulate_fleet
    from simulator.router import RoundRobin

    fleet = simulate_fleet([Scenario(**LOOP)] * 2, RoundRobin())
    assert fleet.summary["requests"]["left_out"] == 8
    assert [replica["requests"]["left_out"] for replica in fleet.summary["replicas"]] == [4, 4]
    assert np.isfinite(fleet.summary["ttft_s"]["mean"])
