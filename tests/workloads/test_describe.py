"""What is in a trace, what an endless cache would save, and what looks wrong."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import Trace, TraceError, TraceRequest, describe


def hits_of(trace, block_size=16):
    return describe(trace, block_size).ideal_hit_tokens


def test_size_rate_and_lengths(make_trace):
    found = describe(make_trace((0, 10, ()), (1, 20, ()), (4, 60, ())))
    assert (found.num_requests, found.span_s, found.rate_per_s, found.prompt_tokens_total) == (3, 4, 0.5, 90)
    assert found.interarrival_cv == pytest.approx(0.5)
    assert (found.prompt.mean, found.prompt.p50, found.prompt.max) == (30, 20, 60)


# -------------------------------------------------------------------------- ideal hits


def test_a_repeated_beginning_is_a_hit(make_trace):
    assert hits_of(make_trace((0, 100, (1, 2, 3)), (1, 100, (1, 2, 4)))) == 32


def test_the_last_prompt_token_is_always_computed(make_trace):
    """48 tokens are all known, but the first output token needs the last of them: two blocks of 16 are a hit."""
    assert hits_of(make_trace((0, 48, (1, 2, 3)), (1, 48, (1, 2, 3)))) == 32
    assert hits_of(make_trace((0, 49, (1, 2, 3)), (1, 49, (1, 2, 3)))) == 48


def test_a_hit_ends_at_the_first_unknown_block(make_trace):
    assert hits_of(make_trace((0, 100, (1, 2, 3)), (1, 100, (1, 9, 3)))) == 16


def test_hits_are_whole_blocks_of_the_engine(make_trace):
    trace = make_trace((0, 1600, (1, 2, 3)), (1, 1537, (1, 2, 3)), block=512)
    assert [hits_of(trace, size) for size in (16, 48, 1024, 2048)] == [1536, 1536, 1024, 0]


def test_generated_tokens_can_be_hit_by_the_next_turn():
    """A turn of 20 + 30 tokens leaves 49 behind: its last token was never an input."""
    turns = [TraceRequest("1", 0.0, 20, 30, (1, 2, 3)), TraceRequest("2", 1.0, 100, 5, (1, 2, 3, 4, 5, 6))]
    assert hits_of(Trace("talk", 16, lambda: iter(turns))) == 48
    turns[0] = TraceRequest("1", 0.0, 20, 28, (1, 2, 3))
    assert hits_of(Trace("talk", 16, lambda: iter(turns))) == 32


def test_without_prefix_ids_the_hits_are_unknown(make_trace):
    found = describe(make_trace((0, 10, ()), block=None))
    assert (found.ideal_hit_tokens, found.ideal_hit_ratio) == (None, None)
    assert found.warnings == ("No request has prefix ids: a prefix cache finds nothing to reuse.",)


@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=12), st.sampled_from([1, 2, 3, 4]))
def test_hits_are_those_of_the_tokens_themselves(prompts, block_size):
    """Against a search of all earlier prompts, token by token, with ids of 2-token blocks."""
    names = {}
    ids = [tuple(names.setdefault(p[:end], len(names)) for end in range(2, len(p) + 1, 2)) for p in prompts]
    rows = [TraceRequest(str(row), row, len(p), 1, ids[row]) for row, p in enumerate(prompts)]

    def hit(row):
        known = [len(list(common(prompts[row], before))) // 2 * 2 for before in prompts[:row]]
        return min(max(known, default=0), len(prompts[row]) - 1) // block_size * block_size

    assert hits_of(Trace("letters", 2, lambda: iter(rows)), block_size) == sum(map(hit, range(len(rows))))


def common(one, other):
    """The letters of the common beginning."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [letter for letter, _ in pairs]


# ------------------------------------------------------------------- what looks wrong


def test_coarse_ticks_look_wrong(make_trace):
    stamps = [0, 0, 0, 3, 3, 6, 9, 9, 12]
    (warning,) = describe(make_trace(*[(stamp, 16, (7,)) for stamp in stamps])).warnings
    assert warning == (
        "Arrivals sit on ticks of 3 s: 7 of 9 requests share their stamp, up to 3 at once. "
        "Spread them inside the tick, else TTFT measures the clock."
    )


def test_a_partial_block_of_a_coarse_id_is_mentioned(make_trace):
    (warning,) = describe(make_trace((0, 1000, (1,)), (1, 612, (2,)), (2, 512, (3,)), block=512)).warnings
    assert warning == (
        "2 prompts end inside a block of 512 tokens: that rest, 294 tokens on average, has no usable prefix id "
        "and is never credited as a hit."
    )


def test_ids_that_mean_different_beginnings_look_local(make_trace):
    (warning,) = describe(make_trace((0, 48, (1, 2, 3)), (1, 48, (9, 2, 3)))).warnings
    assert warning.startswith("1 prefix ids follow different ids in different requests: they look local")


def test_ids_that_only_count_a_rows_blocks_look_local(make_trace):
    (warning,) = describe(make_trace((0, 64, (0, 1, 2, 3)), (1, 32, (0, 1)), (2, 48, (0, 1, 2)))).warnings
    assert warning.startswith("Every prompt is a beginning of the longest one: the prefix ids look local")


def test_one_conversation_does_not_look_local(make_trace):
    assert describe(make_trace((0, 32, (0, 1)), (1, 48, (0, 1, 2)), (2, 64, (0, 1, 2, 3)))).warnings == ()


def test_all_at_once_is_no_traffic(make_trace):
    found = describe(make_trace((5, 16, (1,)), (5, 16, (2,))))
    assert (found.rate_per_s, found.interarrival_cv) == (0, 0)
    assert found.warnings == ("All requests arrive at once: the trace has no rate and no burstiness.",)


def test_an_empty_trace_has_no_description(make_trace):
    with pytest.raises(TraceError, match=r"^hand-made: holds no request$"):
        describe(make_trace())


def test_a_block_holds_at_least_one_token(make_trace):
    with pytest.raises(ValueError, match="a block holds at least 1 token, got 0"):
        describe(make_trace((0, 9, ())), block_size=0)


# ------------------------------------------------------------------ what a picture needs


@given(st.lists(st.tuples(st.floats(0, 5000), st.integers(1, 200_000)), min_size=1, max_size=60).map(sorted))
def test_series_and_histograms_count_each_request_once(rows):
    trace = Trace("any", 16, lambda: (TraceRequest("", at_s, tokens, 1, (1, 2)) for at_s, tokens in rows))
    found = describe(trace)
    assert found.arrivals_per_interval.sum() == found.prompt_histogram.counts.sum() == len(rows)
    assert found.prompt_tokens_per_interval.sum() == found.prompt_tokens_total
    assert found.hit_tokens_per_interval.sum() == found.ideal_hit_tokens
    assert len(found.arrivals_per_interval) == len(found.hit_tokens_per_interval) <= rows[-1][0] // found.interval_s + 1
    assert np.all(np.diff(found.prompt_histogram.edges) > 0)
