"""Closed loops: a call comes when the one before has ended and its user has thought, whatever the server."""

import itertools

import numpy as np
import pytest
import simpy

from simulator import Scenario, simulate
from simulator.closed_loop import ClosedLoop, SessionRuns
from simulator.fleet import Fleet, simulate_fleet
from simulator.router import LeastLoaded, PrefixAware, RoundRobin, SessionAffinity
from simulator.session_measures import open_at_once
from tests.simulator.fleets import deployed
from workloads import (
    Call,
    Session,
    SessionTrace,
    SubAgent,
    Trace,
    TraceError,
    TraceRequest,
    conversation_demo,
    conversation_demo_sessions,
    read_sessions,
    session_starts_s,
)

SMALL = Scenario(
    model="llama-3.1-8b", step_time_s=1.0, num_gpu_blocks_override=40, max_model_len=256, max_num_seqs=4,
    async_scheduling=False, concurrent_sessions=8,
)  # fmt: skip
"""A token of each running request a second, prompts take no step of their own; room for 39 blocks of 16 tokens."""
AGENTS = "coding_agent_sessions.jsonl.gz"


def call(name: str, output: int = 2, think_s: float = 0.0, prompt: int = 16, subagents=()) -> Call:
    return Call(name, prompt, output, think_s, subagents=tuple(subagents))


def sessions(*calls_of: list[Call]) -> SessionTrace:
    """Sessions "0", "1", "2" ... of these calls."""
    rows = [Session(str(number), tuple(calls)) for number, calls in enumerate(calls_of)]
    return SessionTrace("test", 16, lambda: iter(rows))


def times(result, column: str) -> dict[str, float]:
    """When that happened to each call."""
    return dict(zip(result.requests["request_id"], result.requests[column], strict=True))


# One session


def test_a_call_comes_when_the_one_before_has_ended_and_its_user_has_thought():
    result = simulate(SMALL, sessions([call("a", output=3), call("b", output=2, think_s=4.5), call("c", think_s=0.0)]))
    assert times(result, "arrival_s") == {"a": 0.0, "b": 7.5, "c": 9.5}
    assert times(result, "finish_s") == {"a": 3.0, "b": 9.5, "c": 11.5}


def test_a_slower_server_makes_calls_come_later():
    turns = sessions([call("a", output=3), call("b", think_s=4.0)])
    slow = simulate(SMALL.model_copy(update={"step_time_s": 2.0}), turns)
    assert [times(simulate(SMALL, turns), "arrival_s")["b"], times(slow, "arrival_s")["b"]] == [7.0, 10.0]


def test_a_session_may_begin_with_a_thought():
    assert times(simulate(SMALL, sessions([call("a", think_s=2.5)])), "arrival_s") == {"a": 2.5}


def test_long_thoughts_can_be_cut():
    short = SMALL.model_copy(update={"max_think_time_s": 1.5})
    assert times(simulate(short, sessions([call("a"), call("b", think_s=900.0)])), "arrival_s")["b"] == 3.5


def test_a_session_goes_on_after_a_call_that_is_turned_away():
    """Its user thinks about the refusal."""
    result = simulate(SMALL, sessions([call("a"), call("b", prompt=1000, think_s=1.0), call("c", think_s=2.0)]))
    assert times(result, "status") == {"a": "finished", "b": "rejected", "c": "finished"}
    assert times(result, "arrival_s") == {"a": 0.0, "b": 3.0, "c": 5.0}
    assert result.summary["sessions"]["completed"] == 1


def test_a_whole_session_may_be_turned_away_at_once():
    """No call waits for another's: a session may be long."""
    result = simulate(SMALL, sessions([call(str(number), prompt=1000) for number in range(3000)]))
    assert (result.summary["requests"]["rejected"], result.sessions["end_s"].tolist()) == (3000, [0.0])


# Sub-agents


def test_a_call_waits_for_the_subagents_that_were_started_before_it():
    """Two start when "a" has ended, side by side; "b" comes a second after the later one."""
    helpers = [SubAgent((call("x", output=2, think_s=1.0),)), SubAgent((call("y", 2), call("z", 3, think_s=5.0)))]
    result = simulate(SMALL, sessions([call("a", 2, subagents=helpers), call("b", think_s=1.0)]))
    assert times(result, "arrival_s") == {"a": 0.0, "x": 3.0, "y": 2.0, "z": 9.0, "b": 13.0}


def test_a_subagent_may_run_beside_what_follows():
    """The session ends when both have."""
    helper = SubAgent((call("x", output=20),), is_awaited=False)
    result = simulate(SMALL, sessions([call("a", 2, subagents=[helper]), call("b", 3, think_s=1.0)]))
    assert times(result, "arrival_s") == {"a": 0.0, "x": 2.0, "b": 3.0}
    assert (times(result, "finish_s"), result.sessions["end_s"].tolist()) == ({"a": 2.0, "b": 6.0, "x": 22.0}, [22.0])


def test_a_subagent_waits_for_its_own():
    inner = SubAgent((call("y", output=4),))
    outer = SubAgent((call("x", output=1, subagents=[inner]), call("z", output=1, think_s=1.0)))
    result = simulate(SMALL, sessions([call("a", 1, subagents=[outer]), call("b")]))
    assert times(result, "arrival_s") == {"a": 0.0, "x": 1.0, "y": 2.0, "z": 7.0, "b": 8.0}


# Several sessions


def test_a_session_starts_when_another_has_ended():
    """Each call that follows at once misses the step of the other session that begins then."""
    two = SMALL.model_copy(update={"concurrent_sessions": 2})
    turns = [[call(f"{number}/{turn}", output=2 + number) for turn in range(2)] for number in range(4)]
    result = simulate(two, sessions(*turns))
    assert result.sessions[["start_s", "end_s"]].values.tolist() == [[0, 5], [0, 7], [5, 15], [7, 19]]


@pytest.mark.parametrize("most", [1, 3, 7])
def test_there_are_always_as_many_sessions_as_asked_for_until_none_is_left(most):
    few = Scenario(model="gemma-3-1b", gpu="l4", concurrent_sessions=most, num_sessions=30)
    _, num_open = open_at_once(simulate(few).tables["sessions"])
    last = len(num_open) - most
    assert (set(num_open[:last]), num_open[last:].tolist()) == ({most}, [*range(most - 1, -1, -1)])


def test_sessions_may_start_at_a_rate():
    """As independent users do, whether or not others have ended."""
    rate = Scenario(model="gemma-3-1b", gpu="l4", session_rate=0.5, num_sessions=20, seed=3)
    assert simulate(rate).sessions["start_s"].tolist() == list(itertools.islice(session_starts_s(0.5, 3), 20))


def test_at_a_rate_there_may_be_a_limit():
    """Whoever comes then waits for a place."""
    rate = Scenario(model="gemma-3-1b", gpu="l4", session_rate=5.0, num_sessions=30)
    limited = simulate(rate.model_copy(update={"concurrent_sessions": 4}))
    assert (simulate(rate).summary["sessions"]["at_once"]["max"] > 4, open_most(limited)) == (True, 4)
    assert (limited.sessions["start_s"] >= simulate(rate).sessions["start_s"]).all()


def open_most(result) -> int:
    return result.summary["sessions"]["at_once"]["max"]


def test_sessions_of_one_call_that_start_at_given_times_are_an_open_trace():
    """Steps of a second, so that some end just when others arrive."""
    starts_s = [round(start_s) for start_s in itertools.islice(session_starts_s(0.4), 60)]
    rows = [TraceRequest(str(number), float(start_s), 16, 5) for number, start_s in enumerate(starts_s)]
    closed = run(ClosedLoop(sessions(*([call(row.request_id, 5)] for row in rows)), starts_s=lambda: iter(starts_s)))
    opened = simulate(deployed(40, False).scenario, Trace("test", 16, lambda: iter(rows)))
    assert closed.summary == opened.summary


def run(loop: ClosedLoop):
    """The result of a single server that serves it."""
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, False)], RoundRobin())
    SessionRuns(env, loop, fleet.submit)
    env.run()
    return fleet.replicas[0].result()


# What happens at one time


def test_who_follows_at_once_is_not_in_the_step_that_is_planned_then():
    """ "b" comes when "a" has ended and a step of "x" begins: its first token is that of the step after."""
    result = simulate(SMALL, sessions([call("a", 3), call("b", 1)], [call("x", 9)]))
    assert (times(result, "arrival_s")["b"], times(result, "first_scheduled_s")["b"]) == (3.0, 4.0)


def test_who_has_thought_comes_before_the_step_that_begins_then():
    result = simulate(SMALL, sessions([call("a", 3), call("b", 1, think_s=1.0)], [call("x", 9)]))
    assert (times(result, "arrival_s")["b"], times(result, "first_scheduled_s")["b"]) == (4.0, 4.0)


@pytest.mark.parametrize("think_s", [(2.0, 4.0), (4.0, 2.0)])
def test_calls_that_are_due_together_come_in_the_order_of_their_sessions(think_s):
    """Whichever is known first: one user begins to think earlier, both are done at the same time."""
    first, second = think_s
    one = SMALL.model_copy(update={"max_num_seqs": 1})
    turns = sessions(
        [call("a", 1, think_s=4.0 - first), call("c", 1, think_s=first)],
        [call("b", 1, think_s=4.0 - second), call("d", 1, think_s=second)],
    )
    result = simulate(one, turns)
    assert times(result, "arrival_s")["c"] == times(result, "arrival_s")["d"] == 5.0
    assert times(result, "first_scheduled_s") == {"a": 4.0 - first, "b": 4.0 - second, "c": 5.0, "d": 6.0}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_calls_that_follow_at_once_do_too_whichever_replica_was_asked_first(order):
    """Two replicas end a step at the same time, and which of them is woken first is SimPy's business."""

    class First:
        """Sends the first calls to the replicas in this order, and what follows to replica 0."""

        def __init__(self):
            self.to = [*order, 0, 0]

        def choose(self, arrival, replicas):
            return self.to.pop(0)

    one = SMALL.model_copy(update={"max_num_seqs": 1})
    result = simulate_fleet([one, one], First(), trace=sessions([call("a"), call("c")], [call("b"), call("d")]))
    assert times(result, "first_scheduled_s") == {"a": 0.0, "b": 0.0, "c": 2.0, "d": 4.0}


# Requests in flight


@pytest.mark.parametrize("concurrency", [1, 5])
def test_so_many_requests_are_in_flight_until_none_is_left(concurrency):
    scenario = Scenario(model="gemma-3-1b", gpu="l4", concurrency=concurrency)
    result = simulate(scenario)
    requests = result.tables["requests"]
    arrivals_s, ends_s = np.sort(requests["arrival_s"]), np.sort(requests["finish_s"])
    assert arrivals_s.tolist() == [*[0.0] * concurrency, *ends_s[:-concurrency]]
    assert sorted(requests["request_id"]) == sorted(row.request_id for row in conversation_demo())
    assert "sessions" not in result.summary


def test_requests_in_flight_may_be_of_stated_lengths():
    """As a serving benchmark makes them."""
    scenario = Scenario(model="gemma-3-1b", gpu="l4", concurrency=8, input_len=100, output_len=20, num_requests=50)
    summary = simulate(scenario).summary
    assert (summary["requests"]["finished"], summary["running"]["max"]) == (50, 8)


def test_over_a_fleet_they_are_in_flight_in_all():
    scenario = Scenario(model="gemma-3-1b", gpu="l4", concurrency=6)
    result = simulate_fleet([scenario] * 2, LeastLoaded())
    assert result.summary["in_flight"]["max"] == 6
    assert [replica["in_flight"]["max"] for replica in result.summary["replicas"]] == [3, 3]


# Measures


def test_measures_of_sessions():
    """One thinks for 3 s of 8, the other waits for a place and is in the model all the time."""
    one = SMALL.model_copy(update={"concurrent_sessions": 1})
    result = simulate(one, sessions([call("a", 3), call("b", 2, think_s=3.0)], [call("c", 4)]))
    found = result.summary["sessions"]
    assert result.sessions.values.tolist() == [["0", 0.0, 8.0, 2, 0, 5.0], ["1", 8.0, 12.0, 1, 0, 4.0]]
    assert (found["duration_s"]["mean"], found["model_s"]["mean"], found["thinking_s"]["mean"]) == (6.0, 4.5, 1.5)
    assert (found["model_share"], found["calls"]["mean"], found["at_once"]) == (0.75, 1.5, {"mean": 1.0, "max": 1})


def test_time_in_the_model_is_counted_once_however_many_calls_are_in_flight():
    helpers = [SubAgent((call("x", 4),)), SubAgent((call("y", 6),))]
    result = simulate(SMALL, sessions([call("a", 1, subagents=helpers), call("b", 1, think_s=2.0)]))
    assert result.sessions[["model_s", "end_s", "num_calls", "num_subagents"]].values.tolist() == [[8.0, 10.0, 4, 2]]


def test_a_fleet_measures_its_sessions_too():
    result = simulate_fleet([SMALL] * 2, SessionAffinity(), trace=sessions([call("a"), call("b", think_s=3.0)]))
    assert (result.summary["sessions"]["duration_s"]["max"], result.sessions["session"].tolist()) == (7.0, ["0"])
    assert result.requests["replica"].nunique() == 1


def test_no_session_at_all_is_no_trouble():
    assert simulate(SMALL, sessions()).summary["sessions"]["at_once"] == {"mean": None, "max": None}


def test_equal_scenarios_give_equal_runs():
    scenario = Scenario(model="gemma-3-1b", gpu="l4", session_rate=2.0, concurrent_sessions=9, num_sessions=40, seed=5)
    first, second = (simulate_fleet([scenario] * 3, PrefixAware()) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert first.requests.equals(second.requests)


def test_conversations_hit_what_was_said_before():
    """One replica that forgets nothing: all but the rest of a block is there, and the shared beginning."""
    scenario = Scenario(model="llama-3.1-8b", gpu="h100-80gb", concurrent_sessions=1, num_sessions=30)
    sent = said = 0
    for session in conversation_demo_sessions(30):
        for before, turn in itertools.pairwise(session.calls):
            sent, said = sent + turn.prompt_tokens, said + before.prompt_tokens + before.output_tokens - 1
    requests = simulate(scenario).requests
    follows = requests[~requests["request_id"].str.endswith("/1")]
    assert follows["prompt_tokens"].sum() == sent
    assert said - 16 * len(follows) <= follows["cached_tokens"].sum() <= said


# Real sessions, and those that cannot be read


def test_public_agents_on_four_replicas(shared_data):
    """Each session's calls stay in order, and what it said before is found where it was said."""
    scenario = Scenario(
        model="llama-4-scout", step_time_s=0.05, num_gpu_blocks_override=25_000, block_size=64, max_model_len=1_000_000,
        trace=shared_data / "traces" / AGENTS, concurrent_sessions=3, num_sessions=3,
    )  # fmt: skip
    result = simulate_fleet([scenario] * 4, SessionAffinity())
    assert result.summary["requests"]["finished"] == result.summary["requests"]["arrived"]
    assert result.summary["prefix_cache_hit_rate"] > 0.9
    read = [session.num_calls for session in itertools.islice(read_sessions(scenario.trace), 3)]
    assert result.sessions["num_calls"].tolist() == read


def test_a_row_that_cannot_be_read_ends_the_run(tmp_path):
    (path := tmp_path / "agents").write_text(
        '{"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": '
        '[{"t": 0, "type": "n", "in": 9, "out": 1, "hash_rle": []}]}\nspoilt\n'
    )
    with pytest.raises(TraceError, match="row 2: is not valid JSON"):
        simulate(SMALL.model_copy(update={"trace": path, "concurrent_sessions": 1}))
