"""The arithmetic of queues: a fleet that serves one request at a time per replica is a textbook's queue.

Longer runs of the same are in docs/fleets.md.
"""

import numpy as np
import pytest

from simulator import Scenario, simulate
from simulator.fleet import simulate_fleet
from simulator.metrics import makespan_s
from simulator.operations import Operations
from simulator.outages import RandomOutages
from simulator.router import LeastLoaded, PrefixAware
from tests.simulator.queues import (
    STEP_S,
    completion_s,
    interval_95_s,
    lindley_s,
    md1_mean_wait_s,
    mdc_mean_wait_s,
    one_at_a_time,
    poisson_s,
    run_queue,
    trace_of,
    waits_s,
)


@pytest.mark.parametrize("load", [0.5, 0.9, 1.2])
def test_waiting_times_are_lindleys_recursion(load):
    """Poisson arrivals and services of 1 to 9 steps; at 1.2 the queue grows without end."""
    lengths = np.random.default_rng(1).integers(1, 10, 4000)
    arrivals_s = poisson_s(load / lengths.mean(), 4000, seed=0)
    assert waits_s(run_queue(arrivals_s, lengths)) == pytest.approx(lindley_s(arrivals_s, lengths * STEP_S), abs=1e-9)


def test_a_single_server_without_a_fleet_waits_alike():
    lengths = np.random.default_rng(1).integers(1, 10, 1000)
    trace = trace_of(poisson_s(0.15, 1000, seed=0), lengths)
    assert waits_s(simulate(one_at_a_time(), trace)) == pytest.approx(
        waits_s(simulate_fleet([one_at_a_time()], LeastLoaded(), trace=trace)), abs=0
    )


@pytest.mark.parametrize(("load", "num_requests"), [(0.3, 20_000), (0.6, 40_000)])
def test_the_mean_wait_is_pollaczek_and_khinchines(load, num_requests):
    """The mean of so few has a standard error of 2 %, so the seed matters; 400,000 are in docs/fleets.md."""
    waited_s = waits_s(run_queue(poisson_s(load, num_requests, seed=0)))
    assert waited_s.mean() == pytest.approx(md1_mean_wait_s(load), rel=0.02)


def test_near_saturation_the_mean_wait_is_within_its_interval():
    low_s, high_s = interval_95_s(waits_s(run_queue(poisson_s(0.9, 20_000, seed=0))))
    assert low_s < md1_mean_wait_s(0.9) < high_s


@pytest.mark.parametrize("num_servers", [2, 4])
def test_several_servers_before_one_queue_wait_as_crommelin_says(num_servers):
    arrivals_s = poisson_s(0.8 * num_servers, 15_000, seed=0)
    low_s, high_s = interval_95_s(waits_s(run_queue(arrivals_s, num_servers=num_servers)))
    assert low_s < mdc_mean_wait_s(0.8, num_servers) < high_s


def test_a_queue_each_makes_requests_wait_longer_than_one_queue():
    """Even where each goes to the least loaded: it cannot move when another server is done sooner."""
    lengths = np.random.default_rng(1).integers(1, 10, 3000)
    arrivals_s = poisson_s(0.8 * 3 / lengths.mean(), 3000, seed=0)
    one = waits_s(run_queue(arrivals_s, lengths, num_servers=3))
    each = waits_s(run_queue(arrivals_s, lengths, num_servers=3, router=LeastLoaded()))
    assert one.mean() < each.mean()


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_server_of_crommelins_is_pollaczek_and_khinchines(load):
    assert mdc_mean_wait_s(load, 1) == pytest.approx(md1_mean_wait_s(load), rel=1e-6)


# Little's law: requests that are there = arrivals a second x the time that each is there.


def times_there_s(result) -> float:
    requests = result.tables["requests"]
    return float((requests["finish_s"] - requests["arrival_s"]).sum())


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["synchronous", "asynchronous"])
def test_littles_law_holds_for_what_a_router_sees(async_scheduling):
    scenario = Scenario(model="llama-3.1-8b", gpu="h100-80gb", async_scheduling=async_scheduling)
    result = simulate_fleet([scenario] * 2, PrefixAware())
    span_s = makespan_s(result.tables["requests"], result.tables["steps"])
    assert result.summary["in_flight"]["mean"] == pytest.approx(times_there_s(result) / span_s, rel=1e-5)


def test_littles_law_holds_for_the_steps_of_a_single_server():
    """Running and waiting requests by the steps' table, at whose times nobody looked when requests came and went."""
    lengths = np.random.default_rng(1).integers(200, 400, 400)
    result = simulate(one_at_a_time().model_copy(update={"step_time_s": 0.01, "max_model_len": 512,
        "num_gpu_blocks_override": 34}), trace_of(poisson_s(0.3, 400, seed=0), lengths))  # fmt: skip
    steps = result.tables["steps"]
    there_s = float(((steps["running"] + steps["waiting"]) * (steps["end_s"] - steps["start_s"])).sum())
    assert there_s == pytest.approx(times_there_s(result), rel=0.01)


# Servers that break


def test_a_server_is_up_as_long_as_renewal_theory_says():
    """Times between failures and to repair alternate; the share of the time up has a known variance.

    For exponential times of means m and r it is 2 m^2 r^2 / (m + r)^3 over the length of the run (Takács, 1957).
    """
    mtbf_s, mttr_s, num_servers, span_s = 50.0, 10.0, 8, 10_000
    outages = Operations(random_outages=RandomOutages(mtbf_s, mttr_s, seed=0))
    result = run_queue(np.arange(0.0, span_s, 10.0), num_servers=num_servers, operations=outages)
    shares = [replica["availability"] for replica in result.summary["replicas"]]
    deviation = np.sqrt(2 * (mtbf_s * mttr_s) ** 2 / (mtbf_s + mttr_s) ** 3 / (num_servers * span_s))
    assert np.mean(shares) == pytest.approx(mtbf_s / (mtbf_s + mttr_s), abs=1.96 * deviation)
    assert deviation < 0.006


@pytest.mark.parametrize("num_steps", [1, 4, 12])
def test_a_server_that_breaks_takes_as_long_as_gaver_says(num_steps):
    """Everybody is there from the beginning, and the one that is served starts again after each repair."""
    outages = Operations(random_outages=RandomOutages(20.0, 5.0, seed=1))
    num_requests = 3000
    result = run_queue(np.zeros(num_requests), np.full(num_requests, num_steps), operations=outages)
    taken_s = np.diff(np.sort(result.tables["requests"]["finish_s"]))
    low_s, high_s = interval_95_s(taken_s)
    assert low_s < completion_s(num_steps * STEP_S, 20.0, 5.0) < high_s
    assert high_s - low_s < 0.12 * taken_s.mean()
