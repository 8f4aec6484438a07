"""Transformed traces: what is cut, moved, mixed and sampled, and what stays."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import (
    Arrivals,
    Conversations,
    Lengths,
    Trace,
    TraceError,
    TraceRequest,
    Traffic,
    describe,
    find_tick_s,
    merge,
    sample,
    scale_rate,
    slice_rows,
    slice_time,
    spread_ticks,
    synthesize,
)


def arrivals_of(trace):
    return [request.arrival_s for request in trace]


def ids_of(trace):
    return [request.request_id for request in trace]


def trace_at(stamps, block=16):
    rows = [TraceRequest(str(row), stamp, 10, 1) for row, stamp in enumerate(stamps, start=1)]
    return Trace("stamps", block, lambda: iter(rows), len(rows))


# ------------------------------------------------------------------- slices and rates


def test_a_slice_of_rows_starts_at_its_first():
    part = slice_rows(trace_at([0, 1, 4, 6, 9]), 2, 4)
    assert (ids_of(part), arrivals_of(part), part.num_requests) == (["3", "4"], [0, 2], 2)


def test_a_slice_may_reach_beyond_the_end():
    part = slice_rows(trace_at([0, 1, 4]), 2, 100)
    assert (ids_of(part), part.num_requests) == (["3"], 1)


def test_a_slice_of_time_starts_at_its_beginning():
    """The end does not belong to it, and the time before the first arrival does."""
    part = slice_time(trace_at([0, 1, 4, 6, 9]), 3, 9)
    assert (ids_of(part), arrivals_of(part)) == (["3", "4"], [1, 3])


def test_a_slice_reads_no_further_than_it_must():
    def rows():
        yield TraceRequest("1", 0.0, 1, 1)
        yield TraceRequest("2", 5.0, 1, 1)
        raise AssertionError("read on")

    endless = Trace("endless", None, rows)
    assert ids_of(slice_time(endless, 0, 5)) == ids_of(slice_rows(endless, 0, 1)) == ["1"]


@given(st.floats(0.01, 100))
def test_a_scaled_rate_keeps_the_burstiness(factor):
    trace = trace_at([0, 1, 1, 4, 6, 9])
    before, after = describe(trace), describe(scale_rate(trace, factor))
    assert after.rate_per_s == pytest.approx(before.rate_per_s * factor)
    assert after.interarrival_cv == pytest.approx(before.interarrival_cv)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda trace: slice_rows(trace, -1), "a slice needs 0 <= start <= stop, got rows -1 to None"),
        (lambda trace: slice_rows(trace, 3, 2), "a slice needs 0 <= start <= stop, got rows 3 to 2"),
        (lambda trace: slice_time(trace, 3, 2), "a slice needs 0 <= start <= stop, got 3 to 2 seconds"),
        (lambda trace: scale_rate(trace, 0), "a rate is scaled by a positive number, got 0"),
        (lambda trace: scale_rate(trace, math.nan), "a rate is scaled by a positive number, got nan"),
        (lambda trace: spread_ticks(trace, tick_s=-1), "a tick is a positive number of seconds, got -1"),
        (lambda trace: sample(trace, 0), "a sample keeps a fraction above 0 and up to 1, got 0"),
        (lambda trace: sample(trace, 1.5), "a sample keeps a fraction above 0 and up to 1, got 1.5"),
    ],
)
def test_nonsense_is_refused_at_once(make, problem):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make(trace_at([0, 1]))
    assert str(caught.value) == problem


def test_a_reshaped_trace_can_be_sent_to_another_process():
    trace = synthesize(Traffic(Arrivals(1), Lengths(50), Lengths(50)), 20)
    reshaped = merge([slice_time(slice_rows(trace, 2), 1), sample(spread_ticks(scale_rate(trace, 2)), 0.5)])
    assert list(pickle.loads(pickle.dumps(reshaped))) == list(reshaped)


# ------------------------------------------------------------------------------ ticks

TICKS = [0, 0, 0, 3, 3, 2 * 3, 2 * 3, 3 * 3 + 0.001, 4 * 3 - 0.001, 4 * 3 - 0.001, 6 * 3]


def test_a_tick_is_found_although_it_wanders():
    assert find_tick_s(TICKS) == pytest.approx(3)


def test_ticks_of_a_second_are_found_in_sparse_traffic():
    assert find_tick_s([0, 0, 1, 2, 5, 5, 6, 9, 10, 17, 18]) == 1


@pytest.mark.parametrize(
    "stamps",
    [
        [0, 3, 6, 9, 12],  # no two share a stamp: a metronome, not a clock
        [0, 0, 1.234, 5.1, 9.77, 13.21, 13.9],  # two met by chance
        [0, 0, 0, 0],
        [],
    ],
)
def test_no_tick_is_found_where_there_is_none(stamps):
    assert find_tick_s(stamps) is None


def test_equal_stamps_are_spread_inside_their_tick():
    spread = arrivals_of(spread_ticks(trace_at(TICKS)))
    assert all(0 <= after - before < 3.001 for before, after in zip(TICKS, spread, strict=True))
    assert len(set(spread)) == len(spread)


@given(st.lists(st.integers(0, 30), min_size=1).map(sorted), st.integers(0, 9), st.floats(0.01, 100))
def test_spreading_keeps_the_order_and_passes_no_other_stamp(stamps, seed, tick_s):
    spread = arrivals_of(spread_ticks(trace_at(stamps), seed, tick_s))
    assert spread == sorted(spread)
    for before, after in zip(stamps, spread, strict=True):
        later = min((stamp for stamp in stamps if stamp > before), default=math.inf)
        assert before <= after <= min(before + tick_s, later)


def test_spreading_many_arrivals_makes_them_poisson():
    """Ten a tick are as bursty as independent users once they are spread, and far burstier before."""
    arrivals = Arrivals.poisson(rate_per_s=10 / 3)
    smooth = synthesize(Traffic(arrivals, Lengths.fixed(1), Lengths.fixed(1)), 20_000)
    ticking = trace_at([request.arrival_s // 3 * 3 for request in smooth])
    assert describe(ticking).interarrival_cv > 2.5
    assert describe(spread_ticks(ticking)).interarrival_cv == pytest.approx(1, abs=0.03)


def test_a_trace_without_ticks_stays_as_it_is():
    trace = trace_at([0, 0, 1.234, 5.1, 9.77, 13.21, 13.9])
    assert list(spread_ticks(trace)) == list(trace)


def test_the_same_seed_spreads_the_same_way():
    trace = trace_at(TICKS)
    assert arrivals_of(spread_ticks(trace, seed=1)) == arrivals_of(spread_ticks(trace, seed=1))
    assert arrivals_of(spread_ticks(trace, seed=1)) != arrivals_of(spread_ticks(trace, seed=2))


# ---------------------------------------------------------------------------- mixtures


def test_merged_requests_come_in_order_of_arrival():
    both = merge([trace_at([0, 4, 8]), trace_at([3, 4])])
    assert (ids_of(both), both.num_requests) == (["0/1", "1/1", "0/2", "1/2", "0/3"], 5)


@given(st.lists(st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=4), min_size=1, max_size=3))
def test_prefixes_of_different_traces_never_meet(id_lists):
    def make(ids_of_rows):
        rows = [TraceRequest(str(row), 0.0, 64, 1, tuple(ids)) for row, ids in enumerate(ids_of_rows)]
        return Trace("part", 16, lambda: iter(rows))

    merged = merge([make(ids_of_rows) for ids_of_rows in id_lists])
    owners = {(request.request_id.split("/")[0], id_) for request in merged for id_ in request.prefix_ids}
    num_ids = sum(len({id_ for ids in ids_of_rows for id_ in ids}) for ids_of_rows in id_lists)
    assert len(owners) == len({id_ for _, id_ in owners}) == num_ids


def test_merged_traces_hit_only_themselves(make_trace):
    trace = make_trace((0, 48, (1, 2)), (1, 48, (1, 2)))
    assert describe(merge([trace, trace])).ideal_hit_tokens == 2 * describe(trace).ideal_hit_tokens


def test_traces_with_different_prefix_blocks_do_not_merge():
    with pytest.raises(TraceError, match=r"equally many tokens, got stamps: 16, stamps: 512$"):
        merge([trace_at([0]), trace_at([0], block=512)])


def test_a_trace_without_prefixes_merges_with_any():
    assert merge([trace_at([0], block=None), trace_at([0], block=512)]).prefix_block_tokens == 512


def test_nothing_does_not_merge():
    with pytest.raises(TraceError, match="there is no trace to merge"):
        merge([])


# ----------------------------------------------------------------------------- samples


def test_a_sample_keeps_its_fraction():
    kept = ids_of(sample(trace_at(range(10_000)), 0.3))
    assert len(kept) == pytest.approx(3000, abs=150)


def test_a_whole_sample_is_the_trace():
    trace = trace_at([0, 1, 4])
    assert (list(sample(trace, 1)), sample(trace, 1).num_requests) == (list(trace), 3)


def test_a_conversation_is_sampled_as_a_whole():
    traffic = Traffic(Arrivals(1), Lengths(50), Lengths(50), conversations=Conversations(4, think_mean_s=10))
    trace = synthesize(traffic, 2000)
    kept = list(sample(trace, 0.5, seed=3))
    sessions = {request.session for request in kept}
    assert kept == [request for request in trace if request.session in sessions]
    assert len(kept) == pytest.approx(1000, abs=200)


def test_another_seed_is_another_sample():
    trace = trace_at(range(100))
    assert ids_of(sample(trace, 0.5, seed=1)) != ids_of(sample(trace, 0.5, seed=2))
