"""Sessions: what they are made of, where they come from, and how they stream."""

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import (
    Arrivals,
    Call,
    Conversations,
    Lengths,
    Session,
    SharedPrefixes,
    SubAgent,
    Traffic,
    conversation_demo,
    conversation_demo_sessions,
    first_sessions,
    one_call_each,
    read_sessions,
    session_starts_s,
    synthesize,
    synthesize_sessions,
)
from workloads.sessions import as_ranges, walk_calls

CHATS = Traffic(
    Arrivals.poisson(1.0),
    Lengths.lognormal(100, cv=1.0),
    Lengths.fixed(50),
    SharedPrefixes(3, Lengths.lognormal(200, cv=0.5), share=0.5),
    Conversations(mean_turns=3, think_mean_s=5.0, answer_token_s=0.1),
)


def test_a_call_arrives_as_a_request():
    call = Call("s/1", 70, 3, prefix_ranges=(range(4, 6), range(9, 11)), priority=1)
    request = call.arrive(2.5, "s")
    assert (request.arrival_s, request.prefix_ids, request.session, request.priority) == (2.5, (4, 5, 9, 10), "s", 1)


def test_calls_of_subagents_count():
    nested = Call("1.1/1", 1, 1, subagents=(SubAgent((Call("x", 1, 1),), is_awaited=False),))
    session = Session("s", (Call("1", 1, 1, subagents=(SubAgent((nested, Call("1.1/2", 1, 1))),)), Call("2", 1, 1)))
    assert session.num_calls == 5
    assert [call.request_id for call in walk_calls(session.calls)] == ["1", "1.1/1", "x", "1.1/2", "2"]


@given(st.lists(st.integers(0, 6)))
def test_ids_as_ranges_are_the_same_ids(ids):
    ranges = list(as_ranges(ids))
    assert list(itertools.chain.from_iterable(ranges)) == ids
    assert all(one.stop != other.start for one, other in itertools.pairwise(ranges))  # in as few as there can be


def test_every_request_of_a_trace_may_be_a_session():
    trace = conversation_demo()
    sessions = list(one_call_each(trace))
    rows = [
        call.arrive(row.arrival_s, session.name)
        for session, row in zip(sessions, trace, strict=True)
        for call in session.calls
    ]
    assert rows == list(trace)
    assert one_call_each(trace).count_calls() == 400


def test_the_first_sessions_are_the_first():
    sessions = conversation_demo_sessions(30)
    assert list(first_sessions(sessions, 7)) == list(sessions)[:7]
    with pytest.raises(ValueError, match="num_sessions must be at least 0, got -1"):
        first_sessions(sessions, -1)


# Made from a model


@pytest.mark.parametrize("seed", [0, 1])
def test_synthetic_sessions_are_the_conversations_of_the_synthetic_trace(seed):
    """The same turns in the same conversations; the open trace guesses that answers take 0.1 s a token."""
    sessions = list(synthesize_sessions(CHATS, 40, seed))
    open_rows = [row for row in synthesize(CHATS, 3000, seed) if int(row.session[1:]) < 40]
    closed = {}
    for session, start_s in zip(sessions, (row.arrival_s for row in firsts(open_rows)), strict=True):
        at_s = start_s
        for call in session.calls:
            at_s += call.think_time_s
            closed[session.name, call.prompt_tokens] = (
                round(at_s, 6),
                call.output_tokens,
                call.arrive(0.0, None).prefix_ids,
            )
            at_s += 0.1 * call.output_tokens
    assert closed == {
        (row.session, row.prompt_tokens): (round(row.arrival_s, 6), row.output_tokens, row.prefix_ids)
        for row in open_rows
    }


def firsts(rows):
    """The first row of each session, in order of the sessions."""
    by_session = {}
    for row in rows:
        by_session.setdefault(int(row.session[1:]), row)
    return [by_session[number] for number in sorted(by_session)]


def test_a_model_without_conversations_makes_sessions_of_one_call():
    alone = Traffic(Arrivals.poisson(1.0), Lengths.fixed(100), Lengths.fixed(50))
    assert [[call.prompt_tokens for call in session.calls] for session in synthesize_sessions(alone, 3)] == [[100]] * 3


def test_more_sessions_begin_with_fewer():
    """Beyond a chunk of the generator, too."""
    many, few = synthesize_sessions(CHATS, 5000), synthesize_sessions(CHATS, 4200)
    assert list(itertools.islice(many, 4200)) == list(few)


@pytest.mark.parametrize("wrong", [{"num_sessions": -1}, {"num_sessions": 1, "seed": -1}])
def test_numbers_of_sessions_and_seeds_are_not_negative(wrong):
    with pytest.raises(ValueError, match="must be at least 0, got -1"):
        synthesize_sessions(CHATS, **wrong)


def test_sessions_start_as_a_poisson_process():
    starts_s = list(itertools.islice(session_starts_s(4.0, seed=1), 8001))
    gaps_s = [after - before for before, after in itertools.pairwise(starts_s)]
    assert starts_s[0] == 0.0
    mean_s = sum(gaps_s) / len(gaps_s)
    assert mean_s == pytest.approx(1 / 4, rel=0.03)
    assert sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s) == pytest.approx(1 / 16, rel=0.06)
    assert starts_s[1] != next(itertools.islice(session_starts_s(4.0, seed=2), 1, None))


def test_sessions_can_be_sent_to_another_process():
    trace = first_sessions(conversation_demo_sessions(5), 3)
    assert list(pickle.loads(pickle.dumps(trace))) == list(trace)


def test_public_agents_are_read_whole(shared_data):
    sessions = read_sessions(shared_data / "traces" / "coding_agent_sessions.jsonl.gz")
    calls = [call for session in sessions for call in walk_calls(session.calls)]
    assert (len(calls), sum(call.prompt_tokens for call in calls)) == (49_334, 6_037_445_403)
