"""Whole runs through `simulate`: the workload that comes along, limits, and real traces to the end."""

import numpy as np
import pytest

from simulator import Scenario, simulate
from simulator.engine import workload_of
from workloads import Trace, TraceRequest, conversation_demo

LLAMA = {"model": "llama-3.1-8b", "step_time_s": 0.02}
"""No GPU is needed where the pool and the step time are stated."""
UNLIMITED = {**LLAMA, "num_gpu_blocks_override": 1_000_000}


def trace_of(*requests: tuple[float, int, int]) -> Trace:
    """A trace of (arrival, prompt, output)."""
    rows = [TraceRequest(str(row), *request) for row, request in enumerate(requests)]
    return Trace("by hand", None, lambda: iter(rows), len(rows))


@pytest.fixture(scope="module")
def demo():
    """The embedded conversation workload on one L4."""
    return simulate(Scenario(model="gemma-3-1b", gpu="l4"))


def test_the_embedded_workload_runs_to_its_end(demo):
    demo_rows = list(conversation_demo(0))
    assert demo.summary["requests"]["finished"] == len(demo_rows) > 100
    assert sorted(demo.requests["request_id"]) == sorted(row.request_id for row in demo_rows)


def test_conversations_hit_their_earlier_turns(demo):
    """At most what the trace allows: hits are whole blocks, and end before the prompt does."""
    rows = demo.requests
    assert 0.5 < demo.summary["prefix_cache_hit_rate"] < 1
    assert (rows["cached_tokens"] < rows["prompt_tokens"]).all()
    assert set(rows["cached_tokens"] % 16) == {0}


def test_a_requests_times_are_in_order(demo):
    rows = demo.requests[["arrival_s", "first_scheduled_s", "first_token_s", "finish_s"]]
    assert (np.diff(rows.to_numpy(), axis=1) >= 0).all()


def test_sessions_and_priorities_are_those_of_the_trace(demo):
    rows = {row.request_id: (row.session, row.priority) for row in conversation_demo(0)}
    table = zip(demo.requests["request_id"], demo.requests["session"], demo.requests["priority"], strict=True)
    assert {name: (session, priority) for name, session, priority in table} == rows


def test_an_unlimited_pool_never_preempts():
    summary = simulate(Scenario(**UNLIMITED)).summary
    assert (summary["preemptions"]["total"], summary["evictions"]) == (0, 0)


def test_a_small_pool_preempts_and_still_finishes_everything():
    """The same traffic four times as fast on 4,000 tokens."""
    scenario = Scenario(**LLAMA, num_gpu_blocks_override=501, max_model_len=8000, rate_scale=4.0)
    summary = simulate(scenario).summary
    assert summary["preemptions"]["total"] > 0
    assert summary["requests"]["finished"] == summary["requests"]["arrived"] - summary["requests"]["rejected"]


def test_requests_beyond_the_longest_length_are_turned_away_and_counted():
    """Prompt and output together: 100 tokens fit, 101 do not."""
    trace = trace_of((0.0, 90, 10), (0.0, 91, 10), (0.5, 200, 1))
    counts = simulate(Scenario(**UNLIMITED, max_model_len=100), trace).summary["requests"]
    reason = "prompt and output are longer than max_model_len 100"
    assert (counts["finished"], counts["rejected"], counts["rejected_reasons"]) == (1, 2, {reason: 2})


def test_a_run_in_which_everybody_is_turned_away_has_a_summary():
    summary = simulate(Scenario(**UNLIMITED, max_model_len=1)).summary
    assert (summary["requests"]["finished"], summary["makespan_s"], summary["ttft_s"]["max"]) == (0, 0.0, None)


def test_a_single_request_takes_as_many_steps_as_it_has_tokens():
    result = simulate(Scenario(**UNLIMITED), trace_of((3.0, 100, 50)))
    assert result.summary["makespan_s"] == pytest.approx(50 * 0.02)
    assert result.requests["first_token_s"].tolist() == [pytest.approx(3.02)]


def test_progress_is_told_up_to_the_end():
    """Simulated time, and how many requests have ended by then."""
    told = []
    result = simulate(Scenario(**UNLIMITED, num_requests=50), on_progress=lambda *progress: told.append(progress))
    assert told == sorted(told)
    assert told[-1] == (pytest.approx(result.requests["finish_s"].max()), 50)


@pytest.mark.parametrize("rate_scale", [0.5, 2.0])
def test_a_rate_moves_arrivals_and_nothing_else(rate_scale):
    plain, scaled = (list(workload_of(Scenario(model="m", rate_scale=rate))) for rate in (1.0, rate_scale))
    assert [row.arrival_s * rate_scale for row in scaled] == pytest.approx([row.arrival_s for row in plain])
    assert [row.prompt_tokens for row in scaled] == [row.prompt_tokens for row in plain]


def test_only_the_first_requests_are_replayed_where_asked():
    first = list(workload_of(Scenario(model="m", num_requests=7)))
    assert first == list(conversation_demo(0))[:7]


def test_steady_traffic_needs_no_trace():
    """A thousand requests of constant length unless told otherwise, four a second on average."""
    steady = {"model": "m", "request_rate": 4.0, "input_len": 300, "output_len": 20}
    rows = list(workload_of(Scenario(**steady)))
    assert {(row.prompt_tokens, row.output_tokens) for row in rows} == {(300, 20)}
    assert (len(rows), rows[-1].arrival_s) == (1000, pytest.approx(250, rel=0.1))
    assert len(list(workload_of(Scenario(**steady, num_requests=30)))) == 30


def test_equal_stamps_are_spread_where_asked(tmp_path):
    """Twelve requests on three ticks of a second come at twelve different times, the same for the same seed."""
    row = '{"timestamp": %d000, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
    (tmp_path / "ticks.jsonl").write_text("".join(row % (nth // 3 + 1) for nth in range(12)))
    scenario = Scenario(model="m", trace=tmp_path / "ticks.jsonl", spread_ticks=True)
    first, again = ([row.arrival_s for row in workload_of(scenario)] for _ in range(2))
    assert (len(set(first)), first == again) == (12, True)


# Real traces


def test_mooncake_conversations_on_two_h100(shared_data):
    """Gemma-3-27b finishes 2,000 requests of 27 million prompt tokens."""
    scenario = Scenario(
        model="gemma-3-27b",
        gpu="h100-80gb",
        tensor_parallel_size=2,
        trace=shared_data / "traces" / "mooncake_conversation.jsonl",
        num_requests=2000,
    )
    summary = simulate(scenario).summary
    assert (summary["requests"]["finished"], summary["requests"]["rejected"]) == (2000, 0)


def test_an_unlimited_pool_hits_all_that_the_trace_repeats(shared_data):
    """Slowly enough that every request finds what the one before it has computed: the trace's ideal."""
    scenario = Scenario(
        model="llama-3.1-8b",
        step_time_s=0.02,
        num_gpu_blocks_override=3_000_000,
        rate_scale=0.001,
        trace=shared_data / "traces" / "mooncake_conversation.jsonl",
        num_requests=2000,
    )
    requests = simulate(scenario).requests
    assert (requests["cached_tokens"].sum(), requests["prompt_tokens"].sum()) == (8_066_048, 27_441_774)
