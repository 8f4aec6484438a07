"""Traffic from a model: each purpose has its own dice, conversations repeat themselves, nothing is held."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads import (
    Arrivals,
    Conversations,
    Lengths,
    SharedPrefixes,
    Traffic,
    conversation_demo,
    describe,
    synthesize,
)

PLAIN = Traffic(Arrivals.poisson(5), Lengths.lognormal(800, 1.0), Lengths.lognormal(200, 0.5))
CHATS = replace(
    PLAIN,
    prefixes=SharedPrefixes(3, Lengths.lognormal(500, 0.5)),
    conversations=Conversations(mean_turns=4, think_mean_s=5),
)


def column(trace, name):
    return [getattr(request, name) for request in trace]


def by_session(trace):
    sessions = defaultdict(list)
    for request in trace:
        sessions[request.session].append(request)
    return list(sessions.values())


# ----------------------------------------------------------------- arrivals and lengths


@pytest.mark.parametrize(
    ("arrivals", "cv"), [(Arrivals.poisson(5), 1), (Arrivals.gamma(5, 3), 3), (Arrivals.gamma(5, 0.2), 0.2)]
)
def test_gaps_are_as_bursty_as_asked(arrivals, cv):
    found = describe(synthesize(replace(PLAIN, arrivals=arrivals), 50_000))
    assert (found.rate_per_s, found.interarrival_cv) == pytest.approx((5, cv), rel=0.05)


def test_a_metronome_keeps_time_for_ever():
    """The ten-thousandth beat is as exact as the first."""
    trace = synthesize(replace(PLAIN, arrivals=Arrivals.constant(3)), 10_000)
    assert column(trace, "arrival_s") == [beat / 3 for beat in range(10_000)]


def test_fixed_lengths_are_fixed():
    trace = synthesize(Traffic(Arrivals(1), Lengths.fixed(7), Lengths.fixed(3)), 50)
    assert {(request.prompt_tokens, request.output_tokens) for request in trace} == {(7, 3)}


def test_lognormal_lengths_have_the_mean_and_spread_asked_for():
    tokens = np.array(column(synthesize(PLAIN, 50_000), "prompt_tokens"))
    assert (tokens.mean(), tokens.std() / tokens.mean()) == pytest.approx((800, 1.0), rel=0.05)


def test_lengths_are_cut_to_their_bounds():
    lengths = Lengths(100, cv=3.0, min_tokens=20, max_tokens=500)
    tokens = column(synthesize(replace(PLAIN, prompts=lengths), 5000), "prompt_tokens")
    assert (min(tokens), max(tokens)) == (20, 500)


# ------------------------------------------------------------------ seeds and streaming


def test_the_same_seed_is_the_same_trace():
    assert list(synthesize(CHATS, 500, seed=7)) == list(synthesize(CHATS, 500, seed=7))


def test_another_seed_is_another_trace():
    assert list(synthesize(CHATS, 500, seed=7)) != list(synthesize(CHATS, 500, seed=8))


def test_a_longer_trace_begins_with_the_shorter():
    longer = synthesize(CHATS, 20_000)
    assert list(itertools.islice(longer, 9_000)) == list(synthesize(CHATS, 9_000))


@pytest.mark.parametrize("name", ["arrival_s", "prompt_tokens"])
def test_a_change_of_the_outputs_moves_nothing_else(name):
    changed = replace(PLAIN, outputs=Lengths.fixed(50))
    assert column(synthesize(changed, 9000), name) == column(synthesize(PLAIN, 9000), name)


@pytest.mark.parametrize("name", ["arrival_s", "output_tokens"])
def test_a_shared_prefix_moves_nothing_but_the_prompts(name):
    changed = replace(PLAIN, prefixes=SharedPrefixes(5, Lengths.lognormal(100, 1)))
    assert column(synthesize(changed, 9000), name) == column(synthesize(PLAIN, 9000), name)


def test_another_rate_plays_the_same_requests_faster():
    faster = synthesize(replace(PLAIN, arrivals=Arrivals.poisson(10)), 3000)
    assert column(faster, "arrival_s") == pytest.approx([t / 2 for t in column(synthesize(PLAIN, 3000), "arrival_s")])
    assert column(faster, "prompt_tokens") == column(synthesize(PLAIN, 3000), "prompt_tokens")


def test_rows_come_as_they_are_asked_for():
    """A trace that nobody could hold begins at once."""
    first = next(iter(synthesize(CHATS, 10**15)))
    assert (first.request_id, first.arrival_s) == ("1", 0.0)


# --------------------------------------------------------------------- shared prefixes


def test_popular_prefixes_are_shared_by_more():
    """By Zipf's law the first of three has 6 in 11."""
    traffic = replace(PLAIN, prefixes=SharedPrefixes(3, Lengths.fixed(64)))
    ids = column(synthesize(traffic, 20_000), "prefix_ids")
    shares = [ids.count(prefix) / len(ids) for prefix in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)


def test_only_whole_blocks_of_a_prefix_are_shared():
    """The block in which the prefix ends holds the request's own tokens as well."""
    traffic = Traffic(Arrivals(1), Lengths.fixed(10), Lengths(1), SharedPrefixes(1, Lengths.fixed(40)))
    (request,) = synthesize(traffic, 1)
    assert (request.prompt_tokens, request.prefix_ids) == (50, (0, 1))


def test_some_requests_share_nothing():
    traffic = replace(PLAIN, prefixes=SharedPrefixes(1, Lengths.fixed(64), share=0.25))
    ids = column(synthesize(traffic, 20_000), "prefix_ids")
    assert ids.count((0, 1, 2, 3)) / len(ids) == pytest.approx(0.25, abs=0.02)
    assert ids.count(()) / len(ids) == pytest.approx(0.75, abs=0.02)


# ----------------------------------------------------------------------- conversations


def test_a_turn_repeats_all_that_was_said():
    for turns in by_session(synthesize(CHATS, 3000)):
        for before, after in itertools.pairwise(turns):
            said = before.prompt_tokens + before.output_tokens
            assert after.prompt_tokens > said
            assert len(before.prefix_ids) == said // 16
            assert after.prefix_ids[: said // 16] == before.prefix_ids


def test_conversations_share_their_system_prompt_and_nothing_else():
    """Each id stands at one place of one text: the ids that two sessions share are the shared prefix."""
    traffic = replace(CHATS, prefixes=SharedPrefixes(1, Lengths.fixed(320)))
    last_turns = [turns[-1].prefix_ids for turns in by_session(synthesize(traffic, 2000))]
    assert {ids[:20] for ids in last_turns} == {tuple(range(20))}
    own_ids = [id_ for ids in last_turns for id_ in ids[20:]]
    assert len(own_ids) == len(set(own_ids))


def test_a_turn_waits_for_the_answer_and_the_thought():
    talk = Conversations(mean_turns=3, think_mean_s=2, think_cv=0, answer_token_s=0.1)
    trace = synthesize(Traffic(Arrivals(1), Lengths(9), Lengths(50), conversations=talk), 1000)
    gaps_s = [b.arrival_s - a.arrival_s for turns in by_session(trace) for a, b in itertools.pairwise(turns)]
    assert gaps_s == pytest.approx([7.0] * len(gaps_s))


def test_conversations_have_as_many_turns_as_asked():
    trace = synthesize(replace(CHATS, arrivals=Arrivals.constant(5)), 40_000)
    assert 40_000 / len(by_session(trace)) == pytest.approx(4, rel=0.05)


def test_a_conversation_ends_before_it_outgrows_the_context():
    traffic = replace(CHATS, conversations=Conversations(50, think_mean_s=5, max_context_tokens=4000))
    turns = [turn for session in by_session(synthesize(traffic, 5000)) for turn in session[1:]]
    longest = max(turn.prompt_tokens + turn.output_tokens for turn in turns)
    assert 3500 < longest <= 4000


@settings(max_examples=40)
@given(
    st.floats(0.1, 50),
    st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    st.none() | st.builds(Conversations, st.floats(1, 8), st.floats(0, 30), st.sampled_from([0.0, 1.0])),
    st.none() | st.builds(SharedPrefixes, st.integers(1, 5), st.just(Lengths(100, 1.0)), share=st.floats(0, 1)),
    st.integers(0, 2**32),
)
def test_any_traffic_keeps_the_promises_of_a_trace(rate_per_s, cv, talk, prefixes, seed):
    """Ordered arrivals, no empty request, ids that each stand after one other id and cover no more than was said."""
    traffic = Traffic(Arrivals(rate_per_s, cv), Lengths(60, 1.0), Lengths(20, 1.0), prefixes, talk)
    requests = list(synthesize(traffic, 300, seed))
    assert column(requests, "arrival_s") == sorted(column(requests, "arrival_s"))
    assert column(requests, "request_id") == [str(row) for row in range(1, 301)]
    parents = {}
    for request in requests:
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        assert 16 * len(request.prefix_ids) <= request.prompt_tokens + request.output_tokens
        for parent, id_ in itertools.pairwise((None, *request.prefix_ids)):
            assert parents.setdefault(id_, parent) == parent


def test_the_demo_is_a_chat_at_a_few_requests_a_second():
    found = describe(conversation_demo())
    assert (found.num_requests, found.warnings) == (400, ())
    assert 2 <= found.rate_per_s <= 4
    assert found.prompt.max + found.output.max <= 8192


# ---------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Arrivals(0), "rate_per_s must be a positive number, got 0"),
        (lambda: Arrivals(1, cv=-1), "cv must be a number of at least 0, got -1"),
        (lambda: Lengths(0), "mean_tokens must be between 1 and 1,000,000,000, got 0"),
        (lambda: Lengths(9, cv=-1), "cv must be a number of at least 0, got -1"),
        (lambda: Lengths(9, min_tokens=0), "min_tokens must be at least 1, got 0"),
        (lambda: Lengths(9, min_tokens=8, max_tokens=4), "max_tokens must be at least min_tokens (8), got 4"),
        (lambda: SharedPrefixes(0, Lengths(9)), "num_prefixes must be at least 1, got 0"),
        (lambda: SharedPrefixes(1, Lengths(9), zipf_exponent=-1), "zipf_exponent must be at least 0, got -1"),
        (lambda: SharedPrefixes(1, Lengths(9), share=2), "share must be between 0 and 1, got 2"),
        (lambda: Conversations(0, 1), "mean_turns must be at least 1, got 0"),
        (lambda: Conversations(1, -1), "think_mean_s must be at least 0, got -1"),
        (lambda: Conversations(1, 1, think_cv=-1), "think_cv must be a number of at least 0, got -1"),
        (lambda: Conversations(1, 1, answer_token_s=-1), "answer_token_s must be at least 0, got -1"),
        (lambda: Conversations(1, 1, max_context_tokens=0), "max_context_tokens must be at least 1, got 0"),
        (lambda: synthesize(PLAIN, -1), "num_requests must be at least 0, got -1"),
        (lambda: synthesize(PLAIN, 1, seed=-1), "seed must be at least 0, got -1"),
    ],
)
def test_nonsense_is_refused_at_birth(make, problem):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert str(caught.value) == problem
