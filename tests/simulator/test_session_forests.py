"""Sessions at random, with sub-agents of sub-agents: every call ends once and comes when it should."""

from collections import Counter
from dataclasses import replace
from math import nan

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.errors import InvariantError
from simulator.arrival import Arrival
from simulator.closed_loop import ClosedLoop, SessionRuns
from simulator.fleet import Fleet
from simulator.fleet_checks import check_fleet
from simulator.session_measures import open_at_once
from tests.simulator.fleets import ROUTERS, Checked, deployed
from tests.simulator.test_closed_loop import sessions, times
from workloads import Call, SubAgent
from workloads.sessions import walk_calls

leaves = st.builds(
    lambda prompt, output, think, shared: Call(
        "?", prompt, output, float(think), (range(shared),) if shared else ()
    ),
    st.integers(1, 230), st.integers(1, 40), st.integers(0, 20), st.integers(0, 5),
)  # fmt: skip


def with_subagents(calls):
    agents = st.builds(SubAgent, st.lists(calls, min_size=1, max_size=3).map(tuple), st.booleans())
    return st.builds(
        lambda leaf, subagents: replace(leaf, subagents=tuple(subagents)), leaves, st.lists(agents, max_size=2)
    )


forests = st.lists(st.lists(with_subagents(with_subagents(leaves)), min_size=1, max_size=4), min_size=1, max_size=5)


def named(calls, prefix: str) -> tuple[Call, ...]:
    """The same calls, each with an id of its own."""
    return tuple(
        replace(
            each,
            request_id=f"{prefix}{number}",
            subagents=tuple(
                replace(agent, calls=named(agent.calls, f"{prefix}{number}.{index}/"))
                for index, agent in enumerate(each.subagents)
            ),
        )
        for number, each in enumerate(calls)
    )


@pytest.mark.parametrize("kind", ROUTERS)
@settings(max_examples=25, deadline=None)
@given(
    drawn=forests,
    sizes=st.lists(st.sampled_from([18, 40]), min_size=1, max_size=3),
    async_scheduling=st.booleans(),
    most=st.sampled_from([None, 1, 2]),
)
def test_every_call_ends_once_and_comes_when_it_should(kind, drawn, sizes, async_scheduling, most):
    """Sub-agents of sub-agents, calls that are too long, pools that preempt, any router."""
    forest = sessions(*(named(calls, f"{number}/") for number, calls in enumerate(drawn)))
    env, router = simpy.Environment(), Checked(kind())
    fleet = Fleet(env, [deployed(size, async_scheduling) for size in sizes], router)
    router.fleet = fleet
    ends_s: dict[str, float] = {}

    def submit(arrival: Arrival) -> None:
        """Notes when the call leaves the fleet, whatever became of it."""
        on_left, name = arrival.on_left, arrival.row.request_id
        arrival.on_left = lambda: (ends_s.update({name: env.now}), on_left())
        fleet.submit(arrival)

    runs = SessionRuns(env, ClosedLoop(forest, most), submit)
    env.run()
    runs.check(0)
    results = [replica.result() for replica in fleet.replicas]
    check_fleet(fleet, results)
    arrivals_s = {name: at_s for result in results for name, at_s in times(result, "arrival_s").items()}
    wanted = Counter(each.request_id for session in forest for each in walk_calls(session.calls))
    assert Counter(name for result in results for name in result.tables["requests"]["request_id"]) == wanted
    table = runs.table()
    for session, start_s, end_s in zip(forest, table["start_s"], table["end_s"], strict=True):
        assert end_s == check_agent(session.calls, start_s, arrivals_s, ends_s)
    _, num_open = open_at_once(table)
    assert num_open.max(initial=0) <= (most or len(drawn))


def check_agent(calls, start_s: float, arrivals_s: dict[str, float], ends_s: dict[str, float]) -> float:
    """When the agent ended, with all its sub-agents; every call must have come when it was due."""
    free_s = last_s = start_s
    for each in calls:
        assert arrivals_s[each.request_id] == free_s + each.think_time_s
        free_s = ended_s = ends_s[each.request_id]
        for agent in each.subagents:
            agent_s = check_agent(agent.calls, ended_s, arrivals_s, ends_s)
            last_s = max(last_s, agent_s)
            free_s = max(free_s, agent_s) if agent.is_awaited else free_s
    return max(last_s, free_s)


# Sabotage: each check names what was broken


def served(num_calls: int = 2) -> SessionRuns:
    """Sessions that have run, on a server that answers at once."""
    env = simpy.Environment()
    forest = sessions([Call(str(number), 1, 1) for number in range(num_calls)])
    runs = SessionRuns(env, ClosedLoop(forest), lambda arrival: arrival.on_left())
    env.run()
    return runs


def test_a_lost_call_is_noticed():
    with pytest.raises(InvariantError, match=r"^calls-add-up: 2 calls were made, 2 ended and 1 are in flight"):
        served().check(num_in_flight=1)


def test_a_session_that_waits_for_nothing_is_noticed():
    runs = served()
    runs._rows[0].end_s = nan
    with pytest.raises(InvariantError, match=r"^sessions-end: \['0'\] wait for nothing, 0 calls are due"):
        runs.check(0)
