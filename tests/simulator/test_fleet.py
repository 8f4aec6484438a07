"""Fleets: several replicas behind a router, what they leave behind, and what always holds."""

import json
from collections import Counter

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.errors import InvariantError
from kvcache.hashing import PrefixKeys
from kvcache.prefix_snapshot import PrefixSnapshot
from simulator import Scenario, simulate
from simulator.arrival import Arrival
from simulator.fleet import Fleet, simulate_fleet
from simulator.fleet_checks import check_fleet, check_now
from simulator.router import (
    LeastLoaded,
    OneQueue,
    PowerOfTwoChoices,
    PrefixAware,
    RoundRobin,
)
from tests.kvcache.pools import chunked, full, mamba, sliding
from tests.simulator.conftest import Arrival as Asked
from tests.simulator.conftest import new_request, new_scheduler
from tests.simulator.fleets import (
    ROUTERS,
    SMALL,
    Checked,
    Scripted,
    deployed,
    replica_of,
    requests,
    row,
    rows_of,
    serve_all,
    trace_of,
)  # fmt: skip
from workloads import Trace, conversation_demo

MANY = Scenario(model="gemma-3-1b", gpu="l4", num_gpu_blocks_override=3000, max_model_len=9000)


# One replica and several


def test_a_fleet_of_one_is_a_single_server():
    alone, fleet = simulate(MANY), simulate_fleet([MANY], RoundRobin())
    assert fleet.replicas[0].to_json() == alone.to_json()
    assert all(
        np.array_equal(fleet.tables["steps"][name], values, equal_nan=True)
        for name, values in alone.tables["steps"].items()
    )
    assert fleet.requests.sort_values("request_id")["finish_s"].tolist() == (
        alone.requests.sort_values("request_id")["finish_s"].tolist()
    )


def test_each_replica_is_what_it_would_be_with_its_requests_alone():
    """Replicas share a clock and nothing else."""
    trace = conversation_demo()
    fleet = simulate_fleet([MANY] * 3, RoundRobin(), trace=trace)
    rows = list(trace)[1::3]
    alone = simulate(MANY, Trace("every third", trace.prefix_block_tokens, lambda: iter(rows)))
    columns = ["request_id", "first_scheduled_s", "first_token_s", "finish_s", "cached_tokens"]
    ours = fleet.replicas[1].requests[columns]
    assert ours.values.tolist() == alone.requests[columns].values.tolist()


def test_requests_go_where_the_router_says():
    result = simulate_fleet([SMALL] * 3, Scripted(2, 0, 2), trace=trace_of(row("a"), row("b"), row("c")))
    assert replica_of(result) == {"a": 2, "b": 0, "c": 2}


def test_replicas_may_differ():
    """Two ranks and a larger GPU: the same requests take less time, and there are more blocks."""
    small = Scenario(model="llama-3.1-8b", gpu="l4", max_model_len=8192)
    large = Scenario(model="llama-3.1-8b", gpu="h200", tensor_parallel_size=2, max_model_len=8192)
    result = simulate_fleet([small, large], RoundRobin())
    slow, fast = result.summary["replicas"]
    assert fast["e2e_s"]["mean"] < slow["e2e_s"]["mean"] / 3
    assert fast["capacity"]["num_blocks"] > slow["capacity"]["num_blocks"]


def test_the_least_loaded_sends_more_to_the_faster():
    slow, fast = (SMALL.model_copy(update={"step_time_s": step_s}) for step_s in (1.0, 0.25))
    rows = [row(str(number), at_s=0.7 * number, output=20) for number in range(40)]
    counts = Counter(replica_of(simulate_fleet([slow, fast], LeastLoaded(), trace=trace_of(*rows))).values())
    assert counts[1] > 1.5 * counts[0]


def test_a_fleet_has_a_replica():
    with pytest.raises(ValueError, match="at least one replica"):
        simulate_fleet([], RoundRobin())


# The door


def test_a_replica_turns_away_what_is_longer_than_it_serves():
    long = SMALL.model_copy(update={"max_model_len": 512})
    result = simulate_fleet([SMALL, long], RoundRobin(), trace=trace_of(row("a", prompt=300), row("b", prompt=300)))
    assert result.requests.set_index("request_id")["status"].to_dict() == {"a": "rejected", "b": "finished"}


def test_a_whole_queue_may_be_turned_away_at_once():
    """No call waits for another: the queue may be long."""
    rows = [row("a", output=200), *(row(str(number), at_s=1.0, prompt=1000) for number in range(3000))]
    one = SMALL.model_copy(update={"max_num_seqs": 1})
    result = simulate_fleet([one], OneQueue(), trace=trace_of(*rows))
    assert result.summary["requests"]["rejected"] == 3000


# The fleet's queue


def test_in_one_queue_a_request_goes_where_a_place_is_free_first():
    """Both replicas run one request each; "c" follows "b", which ends first."""
    one = SMALL.model_copy(update={"max_num_seqs": 1, "async_scheduling": False})
    rows = [row("a", output=9), row("b", output=3), row("c", at_s=0.5), row("d", at_s=0.6)]
    result = simulate_fleet([one, one], OneQueue(), trace=trace_of(*rows))
    started = dict(zip(result.requests["request_id"], result.requests["first_scheduled_s"], strict=True))
    assert (started, replica_of(result)["c"]) == ({"a": 0.0, "b": 0.0, "c": 3.0, "d": 7.0}, 1)


# What a router sees

SAME = (row("a", ids=(7, 8), prompt=40), row("b", at_s=20.0, ids=(7, 8), prompt=40))


def test_a_router_sees_the_prefixes_that_replicas_hold():
    """Two whole blocks of a prompt, which leaves a token to compute."""
    router = Scripted(1, 0)
    simulate_fleet([SMALL] * 2, router, trace=trace_of(*SAME))
    assert router.held == [[0, 0], [0, 32]]


@pytest.mark.parametrize(("staleness_s", "held"), [(5.0, [0, 32]), (30.0, [0, 0])])
def test_what_a_router_knows_may_be_old(staleness_s, held):
    """At 20 s it knows what was there at 0 s, if that is not too long ago."""
    router = Scripted(1, 0)
    simulate_fleet([SMALL] * 2, router, staleness_s, trace=trace_of(*SAME))
    assert router.held == [[0, 0], held]


def test_a_prefix_aware_router_follows_the_prefix():
    rows = [row(str(number), at_s=20.0 * number, ids=(7, 8), prompt=40) for number in range(5)]
    result = simulate_fleet([SMALL] * 3, PrefixAware(), trace=trace_of(*rows))
    assert set(replica_of(result).values()) == {0}
    assert result.summary["prefix_cache_hit_rate"] == pytest.approx(4 * 32 / (5 * 40), rel=1e-5)


def test_being_asked_leaves_no_trace():
    """A router that asks and then takes turns has the run of one that does not ask."""

    class Curious(RoundRobin):
        def choose(self, arrival, replicas):
            for replica in replicas:
                replica.held_tokens(arrival)
            return super().choose(arrival, replicas)

    asked, not_asked = (simulate_fleet([MANY] * 2, router) for router in (Curious(), RoundRobin()))
    assert asked.replicas[0].to_json() == not_asked.replicas[0].to_json()
    assert asked.replicas[1].to_json() == not_asked.replicas[1].to_json()


LAYERS = {
    "full": [full(4)],
    "sliding": [full(4), sliding(9, 4)],
    "chunked": [full(4), chunked(10, 4)],
    "mamba": [full(4), mamba(4)],
    "window": [sliding(9, 4)],
}


@pytest.mark.parametrize("grouping", ["vllm", "two-level"])
@pytest.mark.parametrize("name", LAYERS)
@given(
    requests=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 12), st.booleans()), min_size=1, max_size=10),
    more=st.integers(0, 12),
)
def test_a_snapshot_says_what_the_manager_would_have_said(name, grouping, requests, more):
    """For every mix of attention types, however often it was refreshed before, and whatever comes later."""
    scheduler = new_scheduler(LAYERS[name], num_blocks=60, grouping=grouping, max_num_batched_tokens=64)
    manager = scheduler.manager
    snapshot = PrefixSnapshot(manager)

    def serve(number: int, prompt: int, shared: int) -> None:
        scheduler.add(new_request(scheduler, str(number), number, Asked(0.0, prompt, 3, tuple(range(shared)))))
        while scheduler.schedule(0.0) is not None:
            scheduler.complete(0.0)

    def peek(cache) -> list[int]:
        keys = PrefixKeys.of_prefix_ids(tuple(range(12)), 4, manager.hash_unit, 99)
        keys.stride = manager.key_stride
        return [cache.peek_hit(keys, num_tokens) for num_tokens in range(2, 51, 4)]

    for number, (prompt, shared, refreshes) in enumerate(requests):
        serve(number, prompt, shared)
        if refreshes:
            snapshot.refresh()
    there = new_request(scheduler, "x", 98, Asked(0.0, 50, 1, tuple(range(12))))
    now = [manager.find_hit(there.blocks, num_tokens) for num_tokens in range(2, 51, 4)]
    snapshot.refresh()
    serve(50, 60, more)
    assert (peek(snapshot), now) == (now, now)


# Tables and measures


def test_tables_say_which_replica():
    result = simulate_fleet([SMALL] * 2, RoundRobin(), trace=trace_of(row("a"), row("b", at_s=1.5), row("c", at_s=9.0)))
    assert result.requests[["request_id", "replica"]].values.tolist() == [["a", 0], ["b", 1], ["c", 0]]
    assert result.steps["start_s"].is_monotonic_increasing
    assert result.steps.groupby("replica")["prefill_tokens"].sum().to_dict() == {0: 32, 1: 16}


def test_what_happens_at_once_is_added_up():
    """Both run one request at the same time, each with one of 39 blocks; later one runs alone."""
    rows = [row("a", output=10), row("b", output=10), row("c", at_s=50.0, output=10)]
    summary = simulate_fleet([SMALL] * 2, RoundRobin(), trace=trace_of(*rows)).summary
    most = [summary[name]["max"] for name in ("running", "in_flight")]
    assert (most, summary["kv_cache_usage"]["max"]) == ([2, 2], pytest.approx(4 / 78, rel=1e-5))


def test_a_summary_is_plain_json_and_has_each_replica():
    result = simulate_fleet([SMALL] * 2, PrefixAware(), 2.0, trace=trace_of(row("a")))
    plain = json.loads(json.dumps(result.to_json()))
    assert plain["scenario"]["fleet"] == {"num_replicas": 2, "router": "prefix-aware", "router_staleness_s": 2.0}
    assert [replica["requests"]["finished"] for replica in plain["replicas"]] == [1, 0]


def test_progress_is_that_of_the_whole_fleet():
    said = []
    simulate_fleet([MANY] * 2, RoundRobin(), on_progress=lambda now_s, num_ended: said.append(num_ended))
    assert said == sorted(said)
    assert said[-1] == 400


def test_equal_fleets_give_equal_runs():
    first, second = (simulate_fleet([MANY] * 3, PowerOfTwoChoices(3), 1.0) for _ in range(2))
    assert first.to_json() == second.to_json()


# What always holds


@pytest.mark.parametrize("kind", ROUTERS)
@settings(max_examples=30, deadline=None)
@given(
    drawn=st.lists(requests, min_size=1, max_size=15),
    sizes=st.lists(st.sampled_from([18, 20, 40]), min_size=1, max_size=4),
    async_scheduling=st.booleans(),
    staleness_s=st.sampled_from([0.0, 3.0]),
)
def test_invariants_hold_whatever_comes(kind, drawn, sizes, async_scheduling, staleness_s):
    """Requests that are too long, pools that preempt, any router, at every choice and at the end."""
    rows = rows_of(drawn)
    env, router = simpy.Environment(), Checked(kind())
    fleet = Fleet(env, [deployed(size, async_scheduling) for size in sizes], router, staleness_s)
    router.fleet = fleet
    serve_all(env, fleet, *rows)
    results = [replica.result() for replica in fleet.replicas]
    check_fleet(fleet, results)
    ended = [name for result in results for name in result.tables["requests"]["request_id"]]
    assert sorted(ended) == sorted(each.request_id for each in rows)


# Sabotage: each check names what was broken


@pytest.fixture
def served():
    """A fleet of two that has served three requests, and its results."""
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, True)] * 2, RoundRobin())
    serve_all(env, fleet, row("a"), row("b", 1.0), row("c", 2.0))
    return fleet, [replica.result() for replica in fleet.replicas]


def test_a_lost_request_is_noticed(served):
    fleet, results = served
    fleet.num_arrived += 1
    with pytest.raises(InvariantError, match=r"^requests-add-up:"):
        check_fleet(fleet, results)


def test_a_request_that_a_replica_forgot_is_noticed(served):
    fleet, _ = served
    fleet.replicas[0].load.change(1, 0.0)
    with pytest.raises(InvariantError, match=r"^requests-add-up: 1 requests were sent to replica 0"):
        check_now(fleet)


def test_a_request_that_nobody_has_is_noticed(served):
    fleet, _ = served
    fleet.load.change(1, 0.0)
    with pytest.raises(InvariantError, match=r"^requests-add-up: 1 requests have arrived and not ended"):
        check_now(fleet)


def test_a_token_too_many_is_noticed(served):
    fleet, results = served
    results[1].tables["steps"]["num_decodes"][-1] += 1
    with pytest.raises(InvariantError, match=r"^tokens-once: replica 1 generated 4 tokens after first ones"):
        check_fleet(fleet, results)


def test_wrong_times_are_noticed(served):
    fleet, results = served
    results[0].tables["requests"]["finish_s"] += 1.0
    with pytest.raises(InvariantError, match=r"^littles-law:"):
        check_fleet(fleet, results)


def test_a_lost_block_is_noticed(served):
    fleet, _ = served
    fleet.replicas[0].scheduler.manager.pool.take(1)
    with pytest.raises(InvariantError, match=r"^conservation:"):
        check_now(fleet)


def test_a_request_on_two_replicas_is_noticed():
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, True)] * 2, RoundRobin())
    fleet.submit(Arrival(row("a"), 16, 0))
    with pytest.raises(InvariantError, match=r"^one-replica: request 'a' is on two replicas"):
        fleet.submit(Arrival(row("a"), 16, 0))


def test_a_request_that_ends_twice_is_noticed():
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, True)] * 2, RoundRobin())
    arrival = Arrival(row("a"), 16, 0)
    fleet.submit(arrival)
    env.run()
    other = fleet.replicas[1]
    other.take(arrival)
    with pytest.raises(InvariantError, match=r"^one-replica: request 'a' ended where it was not"):
        env.run()
