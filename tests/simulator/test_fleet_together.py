"""What meets in a fleet: sessions over replicas that fail, drain, scale or share the work; host memory that fails."""

from collections import Counter

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Scenario
from simulator.closed_loop import ClosedLoop, SessionRuns
from simulator.disaggregation import Servers, simulate_disaggregated
from simulator.fleet import Fleet, simulate_fleet
from simulator.fleet_checks import check_fleet
from simulator.link import Link
from simulator.operations import Operations, operate
from simulator.outages import Outage
from simulator.router import RoundRobin
from tests.simulator.fleets import ROUTERS, deployed
from tests.simulator.queues import one_at_a_time
from tests.simulator.test_closed_loop import sessions
from tests.simulator.test_fleet_failures import all_operations
from tests.simulator.test_session_forests import forests, named
from workloads import Call, Trace, TraceRequest
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
    fleet = Fleet(env, [deployed(size, async_scheduling) for size in sizes], kind(), operations=operations)
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


def test_sessions_come_to_prefill_and_decode_replicas_too():
    """A step for the prompt there, then four here, of which the first computes the prompt's last token again.

    Three seconds to think, and the second call the same way with two steps at its end.
    """
    scenario = one_at_a_time().model_copy(update={"concurrent_sessions": 1})
    servers = Servers([scenario], RoundRobin())
    result = simulate_disaggregated(servers, servers, Link(1e30), trace=CONVERSATION)
    assert result.tables["sessions"]["end_s"].tolist() == [5.0 + 3.0 + 3.0]
    assert result.summary["sessions"]["completed"] == 1


def test_host_memory_goes_with_the_server():
    """What was evicted before the failure is not there after it; bytes are counted over both lives.

    To compute a prompt takes four steps, so to fetch it is faster.
    """
    small = Scenario(
        model="llama-3.1-8b", step_time_s=1.0, num_gpu_blocks_override=18, max_model_len=256, async_scheduling=False,
        kv_offloading_size=10, kv_offloading_bandwidth=10**12, max_num_batched_tokens=64,
    )  # fmt: skip
    prompt, other = tuple(range(15)), tuple(range(100, 115))
    rows = [
        TraceRequest("first", 0.0, 241, 1, prompt),
        TraceRequest("evicts it", 10.0, 241, 1, other),
        TraceRequest("fetches it", 20.0, 241, 1, prompt),
        TraceRequest("after the failure", 40.0, 241, 1, prompt),
    ]
    trace = Trace("four", 16, lambda: iter(rows), len(rows))
    operations = Operations((Outage(0, 30.0, 5.0),))
    result = simulate_fleet([small], RoundRobin(), operations=operations, trace=trace)
    requests = {row["request_id"]: row for row in result.requests.to_dict("records")}
    fetched, anew = requests["fetches it"], requests["after the failure"]
    assert fetched["loaded_tokens"] == result.summary["host_tier"]["fetched_tokens"] > 0
    assert (anew["cached_tokens"], anew["loaded_tokens"]) == (0, 0)
