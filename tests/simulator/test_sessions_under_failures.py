"""Sessions over replicas that fail, drain and scale: a call that is lost has ended, and its session goes on."""

from collections import Counter

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.closed_loop import ClosedLoop, SessionRuns
from simulator.fleet import Fleet, simulate_fleet
from simulator.fleet_checks import check_fleet
from simulator.operations import Operations, operate
from simulator.outages import Outage
from simulator.router import RoundRobin
from tests.simulator.queues import one_at_a_time
from tests.simulator.test_closed_loop import sessions
from tests.simulator.test_fleet_failures import all_operations, server
from tests.simulator.test_session_forests import ROUTERS, forests, named
from workloads import Call
from workloads.sessions import walk_calls

CONVERSATION = sessions([Call("first", 1, 4), Call("second", 1, 2, 3.0)])
"""Four seconds, three to think, two seconds."""


@pytest.mark.parametrize(("max_retries", "ends_s"), [(1, 12.0), (0, 6.0)])
def test_a_session_goes_on_after_a_call_that_was_cut_off(max_retries, ends_s):
    """The only replica is down from 1 to 3: the first call is made again and ends at 7, or is lost at 1.

    Then come three seconds to think, and two for the second call.
    """
    operations = Operations((Outage(0, 1.0, 2.0),), max_retries=max_retries)
    scenario = one_at_a_time().model_copy(update={"concurrent_sessions": 1})
    result = simulate_fleet([scenario], RoundRobin(), operations=operations, trace=CONVERSATION)
    assert result.tables["sessions"]["end_s"].tolist() == [ends_s]


@pytest.mark.parametrize("kind", ROUTERS)
@settings(max_examples=25, deadline=None)
@given(
    drawn=forests,
    sizes=st.lists(st.sampled_from([18, 40]), min_size=1, max_size=3),
    async_scheduling=st.booleans(),
    most=st.sampled_from([None, 1, 2]),
    operations=all_operations(),
)
def test_every_call_ends_once_whatever_fails(kind, drawn, sizes, async_scheduling, most, operations):
    """Finished, rejected or lost; and the run ends, with every session."""
    forest = sessions(*(named(calls, f"{number}/") for number, calls in enumerate(drawn)))
    env = simpy.Environment()
    fleet = Fleet(env, [server(size, async_scheduling, None) for size in sizes], kind(), operations=operations)
    runs = SessionRuns(env, ClosedLoop(forest, most), fleet.submit, fleet.close)
    operate(env, fleet)
    env.run()
    while fleet.give_up():
        env.run()
    runs.check(0)
    results = [replica.result(may_lose=True) for replica in fleet.replicas]
    check_fleet(fleet, results)
    ended = Counter(name for result in results for name in result.tables["requests"]["request_id"])
    ended.update(arrival.row.request_id for arrival in fleet.lost_in_queue)
    assert ended == Counter(each.request_id for session in forest for each in walk_calls(session.calls))
