"""A replica's host memory: what comes back from it and when, what is computed instead, and what it never does."""

from collections.abc import Sequence
from itertools import count
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.grouping import group_layers
from kvcache.host_tier import Fetch
from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings
from models_configs import find_model
from simulator import Scenario
from simulator.batch import Batch
from simulator.deployment import Deployment
from simulator.engine import run_to_the_end
from simulator.hardware import find_gpu
from simulator.host_link import HostLink
from simulator.host_tier import FETCH_LATENCY_S, GIB, HostMemory, best_fetch, prefill_s, with_host_memory
from simulator.recorder import Recorder
from simulator.roofline import Roofline
from simulator.scheduler import SchedulerSettings
from tests.kvcache.pools import full, mamba, sliding
from tests.simulator.conftest import MAX_MODEL_LEN, Arrival, Log, new_request, run
from tests.simulator.test_loading import MIXES, arrivals

BLOCK_BYTES = 16
"""Of four tokens in one layer."""
FAST = 1_000_000
"""Bytes a second."""


def run_with_host(
    requests: Sequence[Arrival],
    capacity_blocks: int = 1000,
    bytes_per_s: int = FAST,
    layers=None,
    num_blocks: int = 21,
    step_s: float = 1.0,
    retention: int | None = 0,
    **limits,
) -> tuple[Log, HostMemory]:
    """Serve requests on a small server with host memory; both tiers are looked at in every step, and at the end."""
    layers = layers or [full(4)]
    limits = {"max_num_batched_tokens": 8, "max_model_len": MAX_MODEL_LEN, **limits}
    if any(layer.kind == "mamba" for layer in layers):
        limits["state_block"] = 4
    scheduling = SchedulerSettings(**limits)
    layout = KVCacheLayout(
        tuple(group_layers(layers)), num_blocks, scheduling.max_model_len, scheduling.max_num_batched_tokens
    )
    deployment = Deployment(
        Scenario(
            model="llama-3.1-8b", step_time_s=step_s, kv_offloading_bandwidth=bytes_per_s,
            kv_offloading_size=capacity_blocks * BLOCK_BYTES / GIB,
        ),
        find_model("llama-3.1-8b"), None, None, layout,
        CacheSettings(block_size=4, prefix_cache_retention_interval=retention), scheduling,
    )  # fmt: skip
    scheduler, host = with_host_memory(deployment)
    assert host is not None
    named = {
        name: new_request(scheduler, name, serial, arrival)
        for serial, name, arrival in zip(count(), ascii_lowercase, requests, strict=False)
    }

    def look(scheduler, batch: Batch) -> None:
        host.tier.check_integrity()

    log = Log(scheduler, named, Recorder(scheduler), look)
    in_order = sorted(named.values(), key=lambda request: request.arrival_s)
    run_to_the_end(scheduler, deployment.step_times, iter(in_order), log, connect=host.connect)
    scheduler.manager.check_integrity([])
    host.tier.check_integrity()
    return log, host


def ids(first: int, num: int) -> tuple[int, ...]:
    """A prompt of so many whole blocks."""
    return tuple(range(first, first + num))


CONVERSATION = [
    Arrival(0.0, prompt=40, output=1, prefix_ids=ids(1, 10)),
    Arrival(20.0, prompt=76, output=1, prefix_ids=ids(100, 19)),
    Arrival(60.0, prompt=48, output=1, prefix_ids=ids(1, 12)),
]
"""Ten blocks, then nineteen of somebody else in a pool of twenty, then the first ones again with two more."""


def test_a_conversation_whose_beginning_was_evicted_comes_back_from_the_host():
    """One block of its ten is left; nine are fetched, and eight tokens are computed in one step instead of six."""
    log, host = run_with_host(CONVERSATION)
    assert (log.cached_tokens["c"], log.requests["c"].loaded_tokens, log.tokens("c")) == (4, 36, [8])
    assert log.first_token_s["c"] == pytest.approx(61 + 9 * BLOCK_BYTES / FAST + FETCH_LATENCY_S)
    assert host.tally().bytes_in == 9 * BLOCK_BYTES


def test_with_a_slow_link_it_is_computed_instead():
    """Fifteen bytes a second: a block takes longer than the step that it could save."""
    log, host = run_with_host(CONVERSATION, bytes_per_s=15)
    assert (log.requests["c"].loaded_tokens, log.first_token_s["c"], host.tally().declined_requests) == (0, 66.0, 1)


def test_a_part_is_fetched_where_the_rest_does_not_pay():
    """36 bytes a second and steps of eight tokens: a step is saved by two blocks, the last of which cost 0.4 s each.

    Behind 40 tokens of the hit one step is left in any case; and it is left behind 36 as well.
    """
    log, _ = run_with_host([*CONVERSATION[:2], Arrival(60.0, 44, 1, prefix_ids=ids(1, 11))], bytes_per_s=36)
    assert (log.requests["c"].loaded_tokens, log.tokens("c")) == (32, [8])


@pytest.mark.parametrize(("again_s", "num_declined"), [(24.0, 0), (40.0, 1)])
def test_what_is_on_its_way_to_the_host_is_not_there_yet(again_s, num_declined):
    """Nine blocks leave at 20 s and are there at 29 s; later there is a choice, which says that one step is faster."""
    requests = [*CONVERSATION[:2], Arrival(again_s, 48, 1, prefix_ids=ids(1, 12))]
    log, host = run_with_host(requests, bytes_per_s=16, max_num_batched_tokens=100)
    assert (log.requests["c"].loaded_tokens, host.tally().declined_requests) == (0, num_declined)


def test_what_the_link_cannot_take_is_dropped():
    """Staging holds what two full steps fill: two blocks each. Nine blocks come within five seconds, 16 s for each."""
    _, host = run_with_host(CONVERSATION[:2], bytes_per_s=1)
    assert (host.staging_bytes, host.tally().dropped_blocks) == (4 * BLOCK_BYTES, 5)


def test_what_makes_room_for_a_fetch_is_not_dropped():
    """The fetch of nine blocks evicts nine at once, more than staging holds: it waits until they have left."""
    log, host = run_with_host(CONVERSATION, bytes_per_s=100)
    tally = host.tally()
    assert (tally.dropped_blocks, tally.num_fetches) == (0, 1)
    assert tally.fetches_s == (pytest.approx(9 * BLOCK_BYTES / 100 + FETCH_LATENCY_S),)
    assert log.requests["c"].loaded_tokens == 36


def test_windows_and_states_are_fetched_as_they_are_needed():
    """Beside ten blocks of full attention: the two of a window of eight, and one state."""
    for layer, num_blocks in ((sliding(8, block_size=4), 12), (mamba(4), 11)):
        log, host = run_with_host(
            [
                Arrival(0.0, 41, 1, ids(1, 10)),
                *(Arrival(60.0 * nth, 120, 1, ids(100 * nth, 30)) for nth in (1, 2)),
                Arrival(200.0, 41, 1, ids(1, 10)),
            ],
            layers=[full(4), layer], num_blocks=40,
        )  # fmt: skip
        assert (log.requests["d"].loaded_tokens, host.tally().bytes_in) == (40, num_blocks * BLOCK_BYTES)


def test_entries_that_are_being_fetched_stay():
    """There is room for ten blocks on the host: nine are read while their fetch evicts nine others."""
    log, host = run_with_host(CONVERSATION, capacity_blocks=10)
    assert (log.requests["c"].loaded_tokens, host.tally().dropped_blocks) == (36, 8)


def test_a_preempted_request_fetches_its_own_tokens():
    """Two requests outgrow the pool; the one that gave way finds what it had computed on the host."""
    log, host = run_with_host([Arrival(0.0, 30, 30), Arrival(0.5, 30, 30)], num_blocks=24)
    assert log.preemptions["b"] == 1
    assert host.tally().fetched_tokens > 0


# ------------------------------------------------------------------------------------------- the decision


def test_a_link_copies_one_after_the_other():
    link = HostLink(bytes_per_s=10.0)
    assert (link.send(20, 1.0), link.send(10, 2.0), link.backlog_bytes(2.0), link.send(10, 9.0)) == (3.0, 4.0, 20, 10.0)


@settings(max_examples=200)
@given(
    computes_s=st.lists(st.floats(0, 10), min_size=1, max_size=16),
    gaps=st.lists(st.integers(1, 1000), min_size=16, max_size=16),
    wait_s=st.floats(0, 5),
    bytes_per_s=st.floats(1, 1e5),
)
def test_no_other_length_is_there_earlier(computes_s, gaps, wait_s, bytes_per_s):
    """Against all of them; where fetching pays nothing, nothing is fetched."""
    fetches = [Fetch(nth, sum(gaps[:nth])) for nth in range(len(computes_s))]

    def fetch_s(num_bytes: int) -> float:
        return wait_s + num_bytes / bytes_per_s if num_bytes else 0.0

    best = best_fetch(fetches, computes_s, fetch_s)
    times_s = [fetch_s(fetch.num_bytes) + compute_s for fetch, compute_s in zip(fetches, computes_s, strict=True)]
    assert times_s.index(min(times_s)) == best


def test_a_prompt_takes_the_steps_of_its_chunks():
    """8,192 tokens and 1,808, behind 2,000 that are there."""
    times = Roofline(find_model("llama-3.1-8b"), find_gpu("h100-80gb"))
    chunks = [Batch(((8192, 2000),), 0, 0), Batch(((1808, 10192),), 0, 0)]
    assert prefill_s(times, 2000, 12000, 8192) == sum(times.durations_s(chunk)[0] for chunk in chunks)


def test_the_choice_is_close_to_the_best_of_all_lengths():
    """Sixteen lengths of 700 are compared: the prompt is complete at most a sixteenth of the way later."""
    times = Roofline(find_model("llama-3.1-8b"), find_gpu("h100-80gb"))
    for bytes_per_s in (1e9, 5e9, 1e10, 2e10, 5e10):
        lengths = range(0, 11_201, 16)
        totals = [length * 131072 / bytes_per_s + prefill_s(times, length, 12_000, 8192) for length in lengths]
        some = [min(range(0, 701, 44), key=lambda nth: totals[nth]), len(totals) - 1]
        assert min(totals[nth] for nth in some) <= min(totals) + (max(totals) - min(totals)) / 16


# ---------------------------------------------------------------------------------------- random traffic


@settings(max_examples=300)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=14),
    layers=st.sampled_from(MIXES),
    num_blocks=st.integers(40, 120),
    capacity_blocks=st.integers(1, 300),
    bytes_per_s=st.sampled_from([5, 60, 500, FAST]),
    is_async=st.booleans(),
    retention=st.sampled_from([0, None]),
    max_num_seqs=st.integers(1, 8),
    budget=st.integers(8, 64),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_every_request_ends_with_every_block_back(
    requests, layers, num_blocks, capacity_blocks, bytes_per_s, is_async, retention, max_num_seqs, budget, policy
):
    """Whatever the link, the room and the mix; both tiers are looked at in every step, and nothing stays pinned.

    Nobody is turned away who would not be without host memory.
    """
    if retention is None and not any(layer.kind in ("sliding", "mamba") for layer in layers):
        retention = 0
    log, host = run_with_host(
        requests, capacity_blocks, bytes_per_s, layers, num_blocks, retention=retention, async_scheduling=is_async,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, scheduling_policy=policy,
    )  # fmt: skip
    finished = {name for name, finish_s in log.finish_s.items() if finish_s is not None}
    assert finished | set(log.rejected) == log.requests.keys()
    assert not finished & set(log.rejected)
    assert host.tier._pins.keys() == set(host._offered)  # nobody may be left to be offered something else
    without = run(
        requests, layers=layers, num_blocks=num_blocks, retention=retention, async_scheduling=is_async,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, scheduling_policy=policy,
    )  # fmt: skip
    assert sorted(log.rejected) == sorted(without.rejected)
