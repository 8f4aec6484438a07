"""What a run leaves in its tables, and that the tables add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Scenario, simulate
from simulator.metrics import inter_token_latencies
from simulator.pool_bytes import BYTE_COLUMNS
from simulator.table import frame_of
from tests.kvcache.pools import full, mamba, sliding
from tests.simulator.conftest import CHUNKS_LEAVE_NO_BUDGET, Arrival, Log, run
from workloads import Arrivals, Lengths, Traffic, synthesize


def test_a_row_for_each_request_in_the_order_in_which_they_end(serve):
    log = serve(requests=[Arrival(0.0, prompt=4, output=3), Arrival(0.5, prompt=4, output=1)])
    columns = ["request_id", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s", "status"]
    assert frame_of(log.recorder.requests_table())[columns].values.tolist() == [
        ["b", 0.5, 1.0, 2.0, 2.0, "finished"],
        ["a", 0.0, 0.0, 1.0, 3.0, "finished"],
    ]


def test_a_row_for_each_batch(serve):
    """A step with the prompt of two blocks, then one that takes a third; an idle second has no row."""
    log = serve(requests=[Arrival(1.0, prompt=8, output=2), Arrival(4.0, prompt=4, output=1)])
    columns = ["start_s", "end_s", "step", "num_steps", "prefill_tokens", "num_decodes", "held_blocks"]
    assert frame_of(log.recorder.steps_table())[columns].values.tolist() == [
        [1, 2, 0, 1, 8, 0, 2],
        [2, 3, 1, 1, 0, 1, 3],
        [4, 5, 2, 1, 4, 0, 1],
    ]


def test_a_row_stands_for_equal_steps(serve):
    """What is in it holds in each of them: a decode, two of the blocks."""
    log = serve(block_size=64, requests=[Arrival(0.0, prompt=64, output=40)])
    row = max(frame_of(log.recorder.steps_table()).itertuples(), key=lambda row: row.num_steps)
    assert row.end_s - row.start_s == row.num_steps > 30
    assert (row.num_decodes, row.running, row.held_blocks) == (1, 1, 2)


def test_who_is_turned_away_is_in_the_table_with_the_reason(serve):
    log = serve(num_blocks=3, requests=[Arrival(0.0, prompt=100, output=1)])
    (row,) = frame_of(log.recorder.requests_table()).itertuples()
    assert (row.status, row.reason) == ("rejected", "its tokens need more blocks than the pool has")
    assert np.isnan([row.first_scheduled_s, row.first_token_s, row.finish_s]).all()


def test_a_run_without_requests_has_empty_tables(serve):
    recorder = serve(requests=[]).recorder
    tables = recorder.requests_table(), recorder.steps_table(), recorder.token_gaps_table()
    assert [len(frame_of(table)) for table in tables] == [0, 0, 0]


def test_a_preemption_is_a_gap_between_two_tokens(serve):
    """The second had its token at 2 and yields; the first ends at 5, and its next token comes at 6."""
    log = serve(num_blocks=6, requests=[Arrival(0.0, prompt=8, output=5), Arrival(0.5, prompt=8, output=5)])
    assert frame_of(log.recorder.token_gaps_table()).values.tolist() == [[4.0, 1]]


def test_missed_steps_are_a_gap_too(serve):
    """The third decodes until 4, then the second's chunks take the whole budget of two steps."""
    log = serve(**CHUNKS_LEAVE_NO_BUDGET)
    assert frame_of(log.recorder.token_gaps_table()).values.tolist() == [[3.0, 1]]
    assert gaps_of(log) == token_times(log)


# What adds up, whatever happens

arrivals = st.builds(
    lambda at_s, prompt, output, shared, priority: Arrival(at_s, prompt, output, tuple(range(shared)), priority),
    st.integers(0, 30), st.integers(1, 40), st.integers(1, 20), st.integers(0, 15), st.integers(0, 2),
)  # fmt: skip
traffic = st.lists(arrivals, min_size=1, max_size=8)
LAYERS = {"full": [full(4)], "sliding": [full(4), sliding(9, 4)], "mamba": [full(4), mamba(4)]}
POLICIES = st.sampled_from(["fcfs", "priority"])


def gaps_of(log: Log) -> tuple[float, float]:
    """(number, sum of seconds) of all gaps between tokens, from the tables."""
    gaps_s, counts = inter_token_latencies(log.recorder.steps_table(), log.recorder.token_gaps_table())
    return counts.sum(), (gaps_s * counts).sum()


def token_times(log: Log) -> tuple[float, float]:
    """The same from the requests: one gap fewer than tokens, and all gaps lie between the first token and the last."""
    ended = log.requests.values()
    return (
        sum(request.output_tokens - 1 for request in ended),
        sum(request.finish_s - request.first_token_s for request in ended),
    )


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=25)
@given(requests=traffic, num_blocks=st.integers(40, 60), budget=st.sampled_from([5, 16, 64]), policy=POLICIES)
def test_every_token_but_the_first_has_its_gap(name, async_scheduling, requests, num_blocks, budget, policy):
    """Also of requests that were preempted, or that the token budget did not reach."""
    log = run(
        requests,
        layers=LAYERS[name],
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=5,
        scheduling_policy=policy,
        async_scheduling=async_scheduling,
    )
    assert gaps_of(log) == token_times(log)


@settings(max_examples=25)
@given(requests=traffic, async_scheduling=st.booleans())
def test_without_preemption_every_token_is_computed_once(requests, async_scheduling):
    """Prompt and output, but for the hit and the last token, whose KV nobody needs."""
    log = run(requests, max_num_batched_tokens=64, async_scheduling=async_scheduling)
    steps, ended = frame_of(log.recorder.steps_table()), frame_of(log.recorder.requests_table())
    computed = steps["prefill_tokens"].sum() + (steps["num_decodes"] * steps["num_steps"]).sum()
    assert computed == (ended["prompt_tokens"] + ended["output_tokens"] - 1 - ended["cached_tokens"]).sum()


@settings(max_examples=25)
@given(requests=traffic, num_blocks=st.integers(18, 40))
def test_with_preemptions_what_is_computed_again_counts_again(requests, num_blocks):
    log = run(requests, num_blocks=num_blocks, max_num_batched_tokens=1000)
    steps = frame_of(log.recorder.steps_table())
    computed = steps["prefill_tokens"].sum() + (steps["num_decodes"] * steps["num_steps"]).sum()
    assert (computed, steps["num_preempted"].sum()) == (
        sum(sum(step.values()) for step in log.steps),
        sum(log.preemptions.values()),
    )


@settings(max_examples=25)
@given(requests=traffic, num_blocks=st.integers(18, 60), async_scheduling=st.booleans())
def test_blocks_are_held_or_free(requests, num_blocks, async_scheduling):
    log = run(requests, num_blocks=num_blocks, async_scheduling=async_scheduling)
    steps = frame_of(log.recorder.steps_table())
    assert set(steps["held_blocks"] + steps["free_blocks"]) == {num_blocks - 1}
    assert (steps["cached_blocks"] <= steps["free_blocks"]).all()


@settings(max_examples=25)
@given(requests=traffic, async_scheduling=st.booleans())
def test_rows_follow_one_another(requests, async_scheduling):
    """No step is missing, and none begins before the one before it has ended."""
    steps = frame_of(run(requests, async_scheduling=async_scheduling).recorder.steps_table())
    assert steps["step"].tolist() == [0, *np.cumsum(steps["num_steps"])[:-1]]
    assert (steps["start_s"].to_numpy()[1:] >= steps["end_s"].to_numpy()[:-1]).all()


@pytest.mark.parametrize(("model", "num_blocks"), [("gemma-3-1b", 2000), ("jamba-v0.1", 120), ("llama-4-scout", 3000)])
def test_the_sampled_bytes_of_a_model_add_up_to_its_pool(model, num_blocks):
    """Under pressure: requests are preempted."""
    traffic = Traffic(Arrivals.poisson(30.0), Lengths.lognormal(900, 1.0, 3000), Lengths.fixed(150))
    result = simulate(
        Scenario(
            model=model,
            num_gpu_blocks_override=num_blocks,
            step_time_s=0.02,
            max_model_len=4096,
            max_num_batched_tokens=2048,
        ),
        synthesize(traffic, 60, seed=1),
    )
    assert result.summary["preemptions"]["total"] > 0
    assert set(result.steps[list(BYTE_COLUMNS)].dropna().sum(axis=1)) == {result.capacity["pool_bytes"]}
