"""The arithmetic of closed loops: users who think and then queue, beside what theory says of them.

Longer runs of the same are in docs/fleets.md.
"""

from itertools import pairwise

import numpy as np
import pytest

from simulator import Scenario, simulate
from simulator.fleet import simulate_fleet
from simulator.router import LeastLoaded
from tests.simulator.queues import machine_repair_per_s, one_at_a_time, repair_shop, throughput_per_s
from workloads import Call, Session, SessionTrace, conversation_demo_sessions
from workloads.sessions import walk_calls


def alike(num_users: int, num_calls: int, think_s: float) -> SessionTrace:
    """Users who think equally long before each call of one step."""
    rows = [
        Session(str(user), tuple(Call(f"{user}/{number}", 1, 1, think_s) for number in range(num_calls)))
        for user in range(num_users)
    ]
    return SessionTrace("alike", None, lambda: iter(rows))


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_throughput_is_users_over_response_and_think_time(num_replicas):
    """X = N / (R + Z), exactly: the response time law of interactive systems, which is Little's law.

    X from the calls and the sessions' times, R from the requests, Z from what was asked for.
    """
    scenario = Scenario(model="gemma-3-1b", gpu="l4", concurrent_sessions=12, num_sessions=60)
    result = simulate_fleet([scenario] * num_replicas, LeastLoaded())
    requests, sessions = result.tables["requests"], result.tables["sessions"]
    open_s = (sessions["end_s"] - sessions["start_s"]).sum()
    span_s = sessions["end_s"].max()
    response_s = (requests["finish_s"] - requests["arrival_s"]).mean()
    think_s = np.mean([call.think_time_s for one in conversation_demo_sessions(60) for call in walk_calls(one.calls)])
    throughput_per_s, num_users = len(requests["finish_s"]) / span_s, open_s / span_s
    assert throughput_per_s == pytest.approx(num_users / (response_s + think_s), rel=1e-9)


@pytest.mark.parametrize(("num_users", "think_s"), [(1, 3.0), (2, 3.0), (4, 3.0), (5, 3.0), (16, 3.0), (8, 20.0)])
def test_equal_users_reach_the_bound_of_balanced_queues(num_users, think_s):
    """Steps of a second: X = min(N / (S + Z), 1 / S). Where all are alike nobody need wait below saturation."""
    server = one_at_a_time().model_copy(update={"concurrent_sessions": num_users})
    result = simulate(server, alike(num_users, num_calls=100, think_s=think_s))
    bound_per_s = min(num_users / (1.0 + think_s), 1.0)
    assert throughput_per_s(result) == pytest.approx(bound_per_s, rel=0.04)


@pytest.mark.parametrize("num_users", [2, 6])
def test_beyond_saturation_a_call_waits_for_all_other_users(num_users):
    """R = N S - Z, once the queue stands."""
    server = one_at_a_time().model_copy(update={"concurrent_sessions": num_users})
    requests = simulate(server, alike(num_users, num_calls=50, think_s=1.0)).requests
    response_s = (requests["finish_s"] - requests["arrival_s"]).iloc[num_users:-num_users]
    assert set(response_s) == {num_users * 1.0 - 1.0}


@pytest.mark.parametrize(("num_users", "think_s"), [(1, 100.0), (4, 100.0), (8, 400.0)])
def test_throughput_is_that_of_the_machine_repair_model(num_users, think_s):
    """So few calls have a standard error of a percent or so; more of them are in docs/fleets.md."""
    result = repair_shop(num_users, think_s, calls_per_session=8_000 // num_users)
    assert throughput_per_s(result) == pytest.approx(machine_repair_per_s(num_users, think_s), rel=0.03)


def test_more_users_are_never_slower_in_all_and_never_faster_each():
    results = [repair_shop(num_users, 100.0, calls_per_session=400) for num_users in (1, 3, 9)]
    assert all(less < more for less, more in pairwise(map(throughput_per_s, results)))
    assert all(one.summary["e2e_s"]["mean"] < other.summary["e2e_s"]["mean"] for one, other in pairwise(results))
