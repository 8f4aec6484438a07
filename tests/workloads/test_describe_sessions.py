"""What is in a trace of sessions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import Call, Session, SessionTrace, SubAgent, TraceError, describe_sessions, read_sessions
from workloads.describe_sessions import _SeenIds


def trace_of(*sessions, block=16):
    return SessionTrace("test", block, lambda: iter(sessions))


def call(prompt, *ranges, think_s=0.0, subagents=()):
    return Call("r", prompt, 1, think_s, tuple(ranges), subagents=tuple(subagents))


def test_size_lengths_and_think_times():
    helper = SubAgent((call(10, think_s=1.0),), is_awaited=False)
    first = Session("a", (call(20, subagents=[helper]), call(60, think_s=5.0)))
    found = describe_sessions(trace_of(first, Session("b", (call(30),))))
    assert (found.num_sessions, found.num_calls, found.num_subagents, found.num_subagents_beside) == (2, 4, 1, 1)
    assert (found.num_subagent_calls, found.prompt_tokens_total, found.calls_per_session.max) == (1, 120, 3)
    assert (found.prompt_tokens.mean, found.think_time_s.mean) == (30, 3.0)


def test_a_call_hits_what_its_session_has_sent():
    """48 of 50 tokens at first, then the whole of what is shared with the sub-agent but for the last block."""
    helper = SubAgent((call(70, range(1, 5)),))
    alone = Session("a", (call(50, range(1, 4), subagents=[helper]), call(81, range(1, 5), range(9, 10))))
    assert describe_sessions(trace_of(alone)).ideal_hit_tokens == 48 + 64


def test_sessions_do_not_hit_one_another():
    same = Session("a", (call(50, range(1, 4)),))
    assert describe_sessions(trace_of(same, same)).ideal_hit_tokens == 0


def test_the_last_prompt_token_is_always_computed():
    same = call(48, range(1, 4))
    assert describe_sessions(trace_of(Session("a", (same, same)))).ideal_hit_tokens == 32


def test_without_prefix_ids_the_hits_are_unknown():
    found = describe_sessions(trace_of(Session("a", (call(50),)), block=None))
    assert (found.ideal_hit_tokens, found.ideal_hit_ratio) == (None, None)


ranges = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: range(pair[0], sum(pair)))


@given(st.lists(st.lists(ranges, max_size=4), max_size=8))
def test_leading_ids_are_those_of_a_set(calls):
    seen, all_ids = _SeenIds(), set()
    for ids in calls:
        written_out = [id_ for each in ids for id_ in each]
        num_leading = next((number for number, id_ in enumerate(written_out) if id_ not in all_ids), len(written_out))
        assert seen.leading(tuple(ids)) == num_leading
        all_ids.update(written_out)
    assert [id_ for pair in zip(seen.starts, seen.stops, strict=True) for id_ in range(*pair)] == sorted(all_ids)


def test_no_session_has_no_description():
    with pytest.raises(TraceError, match=r"^test: holds no session$"):
        describe_sessions(trace_of())


def test_a_block_holds_at_least_one_token():
    with pytest.raises(ValueError, match="a block holds at least 1 token, got 0"):
        describe_sessions(trace_of(), block_size=0)


def test_public_agents(shared_data):
    found = describe_sessions(read_sessions(shared_data / "traces" / "coding_agent_sessions.jsonl.gz"))
    assert (found.num_sessions, found.num_calls, found.num_subagents, found.num_subagents_beside) == (
        710,
        49_334,
        63,
        4,
    )
    assert (round(found.prompt_tokens.mean), round(found.prompt_tokens.p99), round(found.output_tokens.mean)) == (
        122_379, 498_519, 440,
    )  # fmt: skip
    assert round(found.ideal_hit_ratio, 3) == 0.963
