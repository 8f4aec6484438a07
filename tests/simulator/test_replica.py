"""The loop in simulated time: who is seen by which step, and that a row of equal steps changes nothing."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_configs import Chunk, Window
from tests.kvcache.pools import chunked, full, mamba, sliding
from tests.simulator.conftest import Arrival, Log, OneStepAtATime, run

LONG = Arrival(0.0, prompt=3, output=200)
"""Alone it decodes in rows of many steps."""


def test_steps_in_which_nothing_changes_pass_as_one(serve):
    """Two hundred tokens in blocks of 64 are a handful of batches."""
    log = serve(block_size=64, requests=[LONG])
    assert (len(log.steps_per_batch) <= 10, len(log.steps)) == (True, 200)


def test_an_arrival_cuts_a_row_short_at_the_end_of_its_step(serve):
    """It comes in step 11 and is served in step 12; the row that it cut goes on without a token lost."""
    log = serve(block_size=64, requests=[LONG, Arrival(10.5, prompt=4, output=1)])
    assert log.first_token_s["b"] == 12.0
    assert log.finish_s["a"] == 200.0


def test_an_arrival_at_the_end_of_a_step_joins_the_next(serve):
    log = serve(block_size=64, requests=[LONG, Arrival(10.0, prompt=4, output=1)])
    assert log.first_token_s["b"] == 11.0


def test_an_arrival_joins_the_next_step_also_if_the_one_before_came_during_this_step(serve):
    """At equal times arrivals come before the end of a step, whichever was known first."""
    log = serve(requests=[Arrival(0.0, 4, 9), Arrival(0.5, 4, 1), Arrival(1.0, 4, 1)])
    assert log.steps[1] == {"a": 1, "b": 4, "c": 4}


@pytest.mark.parametrize("at_s", range(60, 66))
def test_an_arrival_at_the_end_of_a_row_joins_the_next_step(serve, at_s):
    """A row ends where the block is full; on its end no arrival is lost, and none comes a step late."""
    log = serve(block_size=64, requests=[LONG, Arrival(at_s, prompt=4, output=1)])
    assert log.first_token_s["b"] == at_s + 1


def test_arrivals_at_one_time_are_all_seen_by_the_same_step(serve):
    log = serve(block_size=64, requests=[LONG] + [Arrival(10.0, prompt=4, output=1)] * 5)
    assert log.steps[10] == {"a": 1} | dict.fromkeys("bcdef", 4)


def test_an_arrival_meets_the_last_step_of_others(serve):
    """At time 4 the first ends and the second comes: one step has both ends, none has both requests."""
    log = serve(requests=[Arrival(0.0, prompt=4, output=4), Arrival(4.0, prompt=4, output=1)])
    assert log.steps == [{"a": 4}, {"a": 1}, {"a": 1}, {"a": 1}, {"b": 4}]


def test_an_idle_server_wakes_up_for_an_arrival(serve):
    log = serve(requests=[Arrival(0.0, 4, 1), Arrival(10.25, 4, 1), Arrival(100.0, 4, 1)])
    assert log.finish_s == {"a": 1.0, "b": 11.25, "c": 101.0}


def test_a_rejected_request_leaves_the_server_awake(serve):
    """Nothing runs after it was turned away, until somebody comes."""
    log = serve(num_blocks=3, requests=[Arrival(0.0, prompt=100, output=1), Arrival(5.0, prompt=4, output=1)])
    assert (log.rejected, log.finish_s["b"]) == (["a"], 6.0)


# Asynchronous scheduling


@pytest.mark.parametrize(("async_scheduling", "first_token_s"), [(False, 12.0), (True, 13.0)])
def test_a_step_that_is_planned_already_cannot_serve_an_arrival(serve, async_scheduling, first_token_s):
    """At 10.5 step 11 runs; planned ahead, step 12 is fixed too."""
    log = serve(requests=[LONG, Arrival(10.5, prompt=4, output=1)], async_scheduling=async_scheduling)
    assert log.first_token_s["b"] == first_token_s


def test_planning_ahead_costs_a_lone_request_nothing(serve):
    log = serve(requests=[LONG, Arrival(300.25, 4, 1)], async_scheduling=True)
    assert log.finish_s == {"a": 200.0, "b": 301.25}


# Rows of steps


@dataclass(frozen=True)
class StepsGrowWithContexts:
    """A step takes longer for each token, and for each that is attended to; in binary fractions, so sums are exact."""

    def durations_s(self, batch) -> list[float]:
        step = np.arange(batch.num_steps)
        contexts = batch.decode_context_tokens + batch.num_decodes * step
        for tokens, growth in zip(batch.decode_window_tokens, batch.decode_window_growth, strict=True):
            contexts = contexts + 3 * (tokens + growth * step)
        return (1 + batch.num_tokens / 64 + contexts / 1024).tolist()


SHAPES = {
    "full": ([full(4)], ()),
    "sliding": ([full(4), sliding(9, 4)], (Window(9),)),
    "two windows": ([full(4), sliding(5, 4), sliding(30, 4)], (Window(5), Window(30))),
    "chunked": ([full(4), chunked(16, 4)], (Chunk(16),)),
    "mamba": ([full(4), mamba(4)], ()),
}

families = st.integers(1, 3)
ARRIVALS = st.builds(
    lambda quarters, prompt, output, family, shared, priority: Arrival(
        quarters / 4, prompt, output, tuple(100 * family + nth for nth in range(shared)), priority
    ),
    st.integers(0, 200),
    st.integers(1, 60),
    st.integers(1, 60),
    families,
    st.integers(0, 20),
    st.integers(0, 2),
)


def what_happened(log: Log) -> tuple:
    return log.steps, log.first_token_s, log.finish_s, log.cached_tokens, log.preemptions, log.rejected


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25)
@given(
    requests=st.lists(ARRIVALS, min_size=1, max_size=8),
    num_blocks=st.integers(12, 80),
    budget=st.sampled_from([8, 13, 64]),
    policy=st.sampled_from(["fcfs", "priority"]),
    is_async=st.booleans(),
)
def test_rows_of_steps_are_the_same_as_steps_one_by_one(shape, requests, num_blocks, budget, policy, is_async):
    """Times, hits, preemptions and each step's tokens, whenever arrivals cut a row."""
    layers, reaches = SHAPES[shape]
    server = {
        "layers": layers,
        "reaches": reaches,
        "num_blocks": num_blocks,
        "max_num_batched_tokens": budget,
        "max_num_seqs": 5,
        "scheduling_policy": policy,
        "async_scheduling": is_async,
    }
    in_rows = run(requests, **server, step_times=StepsGrowWithContexts())
    one_by_one = run(requests, **server, step_times=OneStepAtATime(StepsGrowWithContexts()))
    assert what_happened(in_rows) == what_happened(one_by_one)


@given(step_s=st.floats(0.001, 1), start_s=st.floats(0, 1e6), share=st.floats(0, 1))
def test_nobody_waits_longer_than_the_step_that_runs(step_s, start_s, share):
    """Whatever the rounding of clocks: rows are cut at the end of the step in which somebody arrives."""
    arrival_s = start_s + share * 200 * step_s
    log = run([replace(LONG, at_s=start_s), Arrival(arrival_s, 4, 1)], block_size=64, step_s=step_s)
    wait_s = log.requests["b"].first_scheduled_s - arrival_s
    assert 0 <= wait_s <= step_s + 1e-9
