"""Measures of a run, on tables small enough to compute by hand."""

import json
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics import count_requests, inter_token_latencies, over_time, summarize, weighted_percentiles
from tests.simulator.fake_result import (
    GIB,
    busy_hour,
    make_capacity,
    make_gaps,
    make_requests,
    make_result,
    make_steps,
)

NO_DATA = dict.fromkeys(["mean", "p50", "p90", "p95", "p99", "max"])


def test_ttft_includes_the_queue():
    requests = make_requests(arrival_s=[0.0, 2.0], first_scheduled_s=[0.0, 5.0], first_token_s=[1.0, 6.0])
    summary = make_result(requests, make_steps(running=[1])).summary
    assert (summary["ttft_s"]["mean"], summary["ttft_s"]["max"]) == (2.5, 4.0)
    assert (summary["queue_s"]["mean"], summary["queue_s"]["max"]) == (1.5, 3.0)


def test_tpot_is_one_value_per_request_with_two_tokens():
    """Five tokens in four seconds after the first are 1 s each; one token has no time per output token."""
    requests = make_requests(arrival_s=[0.0, 0.0], first_token_s=[1, 1], finish_s=[5, 1], output_tokens=[5, 1])
    tpot = make_result(requests, make_steps(running=[1])).summary["tpot_s"]
    assert (tpot["mean"], tpot["max"]) == (1.0, 1.0)


def test_an_unfinished_request_counts_for_ttft_alone():
    requests = make_requests(
        arrival_s=[0.0, 0.0], first_token_s=[1.0, 3.0], finish_s=[2.0, np.nan], status=["finished", "unfinished"]
    )
    summary = make_result(requests, make_steps(running=[1])).summary
    assert (summary["ttft_s"]["max"], summary["e2e_s"]["max"], summary["tpot_s"]["max"]) == (3.0, 2.0, 1.0)
    assert summary["requests"]["unfinished"] == 1


def test_itl_weighs_each_step_by_its_decodes():
    """Three equal steps of 2 s for two decodes, one of 1 s for none, and a gap across a preemption."""
    steps = make_steps(num_steps=[3, 1], start_s=[0.0, 6.0], end_s=[6.0, 7.0], num_decodes=[2, 0])
    gaps_s, counts = inter_token_latencies(steps, make_gaps((9.0, 1)))
    assert list(zip(gaps_s, counts, strict=True)) == [(2.0, 6.0), (9.0, 1.0)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=30),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_weighted_percentiles_are_those_of_the_expanded_values(pairs, percentiles):
    values, counts = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    expected = np.percentile(np.repeat(values, counts.astype(int)), percentiles)
    assert weighted_percentiles(values, counts, percentiles) == pytest.approx(expected)


def test_usage_is_weighted_by_time_and_leaves_out_the_null_block():
    """Half of 100 blocks for 1 s, all for 3 s."""
    steps = make_steps(start_s=[0.0, 1.0], end_s=[1.0, 4.0], held_blocks=[50, 100])
    usage = make_result(make_requests(arrival_s=[0.0]), steps, num_blocks=101).summary["kv_cache_usage"]
    assert usage == {"mean": 0.875, "max": 1.0}


def test_idle_time_counts_as_nothing_running():
    steps = make_steps(start_s=[0.0, 3.0], end_s=[1.0, 4.0], running=[2, 4], waiting=[0, 1])
    summary = make_result(make_requests(arrival_s=[0.0]), steps).summary
    assert (summary["running"], summary["waiting"]) == ({"mean": 1.5, "max": 4}, {"mean": 0.25, "max": 1})


def test_makespan_begins_with_the_first_arrival():
    steps = make_steps(start_s=[10.0], end_s=[14.0], running=[1])
    summary = make_result(make_requests(arrival_s=[10.0], prompt_tokens=[100], output_tokens=[8]), steps).summary
    assert summary["makespan_s"] == 4.0
    assert summary["throughput"] == {
        "requests_per_s": 0.25,
        "prompt_tokens_per_s": 25.0,
        "output_tokens_per_s": 2.0,
    }


def test_hit_rate_is_over_prompt_tokens_of_admitted_requests():
    requests = make_requests(
        prompt_tokens=[100, 300, 999], cached_tokens=[100, 100, 0], first_scheduled_s=[0.0, 0.0, np.nan]
    )
    assert make_result(requests, make_steps(running=[1])).summary["prefix_cache_hit_rate"] == 0.5


def test_rejections_are_counted_by_reason_most_frequent_first():
    requests = make_requests(status=["rejected", "finished", "rejected", "rejected"], reason=["b", None, "c", "c"])
    counted = make_result(requests, make_steps(running=[1])).summary["requests"]
    assert counted == {
        "arrived": 4,
        "finished": 1,
        "rejected": 3,
        "rejected_reasons": {"c": 2, "b": 1},
        "unfinished": 0,
    }
    assert list(counted["rejected_reasons"]) == ["c", "b"]


def test_lost_requests_are_counted_where_there_may_be_any():
    requests = make_requests(status=["lost", "finished", "lost"], reason=["b", None, "b"])
    assert count_requests(requests, may_lose=True) == {
        "arrived": 3, "finished": 1, "rejected": 0, "rejected_reasons": {}, "lost": 2, "lost_reasons": {"b": 2},
        "unfinished": 0,
    }  # fmt: skip
    assert "lost" not in count_requests(requests)


def test_waste_is_what_held_blocks_do_not_use_in_sampled_rows():
    steps = make_steps(
        readable_bytes=[5 * GIB, np.nan, 8 * GIB], reserved_bytes=[1 * GIB, np.nan, 0], free_bytes=[9 * GIB, np.nan, 0],
        empty_slots_bytes=[1 * GIB, np.nan, 1 * GIB], padding_layers_bytes=[1 * GIB, np.nan, 3 * GIB],
    )  # fmt: skip
    wasted = make_result(make_requests(arrival_s=[0.0]), steps).summary["wasted_bytes"]
    assert wasted == {"mean": 3 * GIB, "max": 4 * GIB, "share_of_held": 0.3}


def test_preemptions_steps_and_evictions_are_sums():
    requests = make_requests(num_preemptions=[0, 3, 1])
    summary = make_result(requests, make_steps(num_steps=[4, 1], evictions=[2, 5])).summary
    assert summary["preemptions"] == {"total": 4, "requests": 2}
    assert (summary["steps"], summary["evictions"]) == (5, 7)


def test_an_empty_run_has_nulls_and_no_nan():
    summary = make_result(make_requests(arrival_s=[]), make_steps(running=[])).summary
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["ttft_s"] == summary["itl_s"] == NO_DATA
    assert summary["kv_cache_usage"] == {"mean": None, "max": None}
    assert summary["makespan_s"] == 0.0


def test_a_model_without_kv_cache_has_no_usage():
    summary = make_result(make_requests(arrival_s=[0.0]), make_steps(running=[1]), num_blocks=1).summary
    assert summary["kv_cache_usage"] == {"mean": None, "max": None}


def test_floats_carry_six_significant_digits():
    steps = make_steps(start_s=[0.0], end_s=[1234.56789])
    assert make_result(make_requests(arrival_s=[0.0]), steps).summary["makespan_s"] == 1234.57


def test_summary_is_plain_json_in_a_fixed_order():
    summary = busy_hour().summary
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert list(summary) == [
        "requests", "makespan_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "throughput",
        "prefix_cache_hit_rate", "preemptions", "kv_cache_usage", "running", "waiting", "wasted_bytes", "steps",
        "evictions",
    ]  # fmt: skip


def test_bins_hold_time_weighted_means_and_extremes():
    """4 for 1 s, then 0 for 1 s; 2 for 2 s: bins of 2 s."""
    line = over_time(np.array([0.0, 2.0]), np.array([1.0, 4.0]), np.array([4.0, 2.0]), np.array([0.0, 2.0, 4.0, 6.0]))
    assert line.mean.tolist() == [2.0, 2.0, 0.0]
    assert line.low.tolist() == [0.0, 2.0, 0.0]
    assert line.high.tolist() == [4.0, 2.0, 0.0]


def test_bins_keep_the_integral():
    rng = np.random.default_rng(0)
    knots_s = np.cumsum(rng.exponential(1.0, 400))
    starts_s, ends_s, values = knots_s[:-1:2], knots_s[1::2], rng.random(200)
    edges_s = np.linspace(0.0, knots_s[-1] + 5.0, 38)
    line = over_time(starts_s, ends_s, values, edges_s)
    assert np.sum(line.mean * np.diff(edges_s)) == pytest.approx(np.sum(values * (ends_s - starts_s)))
    assert np.all((line.low <= line.mean) & (line.mean <= line.high))


def test_bins_of_no_rows_are_zero():
    nothing = np.array([])
    assert over_time(nothing, nothing, nothing, np.array([0.0, 1.0, 2.0])).mean.tolist() == [0.0, 0.0]


def test_a_million_rows_take_seconds():
    result = busy_hour(1_000_000, 1_000_000)
    begin = perf_counter()
    summarize(result.requests, result.steps, result.token_gaps, make_capacity())
    assert perf_counter() - begin < 10
