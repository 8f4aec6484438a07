"""Replicas that fail, are drained and come back: what becomes of requests, and what always holds."""

from collections import Counter

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.errors import InvariantError
from simulator.autoscaling import Autoscaling
from simulator.fleet import Fleet, simulate_fleet
from simulator.fleet_checks import check_fleet, check_now
from simulator.operations import Operations
from simulator.outages import Drain, Outage, RandomOutages
from simulator.replica import wait_until
from simulator.router import LeastLoaded, RoundRobin
from tests.simulator.fleets import (
    ROUTERS,
    SMALL,
    Scripted,
    deployed,
    replica_of,
    requests,
    row,
    rows_of,
    serve_all,
    trace_of,
)  # fmt: skip

SYNC = SMALL.model_copy(update={"async_scheduling": False})
BOTH = pytest.mark.parametrize("async_scheduling", [False, True], ids=["synchronous", "asynchronous"])


def served(*rows, operations, replicas=2, router=None, **changes):
    """What a fleet of small servers makes of the rows: a second for each step, four requests at once."""
    scenario = SYNC.model_copy(update=changes)
    return simulate_fleet([scenario] * replicas, router or RoundRobin(), operations=operations, trace=trace_of(*rows))


def column(result, name: str) -> dict[str, object]:
    """By request."""
    return dict(zip(result.requests["request_id"], result.requests[name], strict=True))


def states_of(result, replica: int) -> list[tuple[str, float, float]]:
    states = result.tables["states"]
    rows = zip(*(states[name].tolist() for name in ("replica", "state", "start_s", "end_s")), strict=True)
    return [(state, start_s, end_s) for number, state, start_s, end_s in rows if number == replica]


# A replica fails


@BOTH
def test_a_request_is_finished_elsewhere_and_its_latency_counts_from_its_arrival(async_scheduling):
    """It decodes for 50 seconds, starts again at 50.5 on the other replica, and needs 100 seconds there."""
    broken = Operations(outages=(Outage(0, 50.5),))
    result = served(row("a", output=100), operations=broken, async_scheduling=async_scheduling)
    (request,) = result.requests.to_dict("records")
    assert {name: request[name] for name in ("arrival_s", "first_token_s", "finish_s", "replica", "num_retries")} == {
        "arrival_s": 0.0, "first_token_s": 51.5, "finish_s": 150.5, "replica": 1, "num_retries": 1,
    }  # fmt: skip
    assert result.summary["ttft_s"]["mean"] == 51.5


@BOTH
@pytest.mark.parametrize(("at_s", "num_tokens"), [(0.5, 0), (1.0, 0), (1.5, 1), (40.0, 39), (50.5, 50), (98.25, 98)])
def test_steps_that_were_over_count_and_the_one_that_ran_does_not(async_scheduling, at_s, num_tokens):
    """Also within a row of equal steps; a step that would end at the very moment is lost."""
    broken = Operations(outages=(Outage(0, at_s),), max_retries=0)
    result = served(row("a", output=100), operations=broken, replicas=1, async_scheduling=async_scheduling)
    steps = result.steps
    assert (result.summary["operations"]["lost_tokens"], steps["num_steps"].sum()) == (num_tokens, num_tokens)
    assert steps["end_s"].max() == num_tokens or steps.empty


def test_who_is_lost_with_a_replica_is_who_was_there():
    """Four run and one waits on replica 0; the others are elsewhere, or come later."""
    rows = [row(str(number), output=30) for number in range(10)]
    broken = Operations(outages=(Outage(0, 20.25, 5.0),), max_retries=0)
    result = served(*rows, row("later", at_s=26.0), operations=broken)
    lost = result.requests[result.requests["status"] == "lost"]
    assert sorted(lost["request_id"]) == ["0", "2", "4", "6", "8"]
    counts = result.summary["requests"]
    reasons = {"the replica where it was failed": 5}
    assert (counts["finished"], counts["lost"], counts["lost_reasons"]) == (6, 5, reasons)


def test_a_request_is_tried_again_as_often_as_allowed():
    broken = Operations(outages=tuple(Outage(0, at_s, 0.0) for at_s in (2.5, 4.5, 6.5)), max_retries=2)
    result = served(row("a", output=10), row("b", at_s=5.0, output=10), operations=broken, replicas=1)
    assert column(result, "status") == {"a": "lost", "b": "finished"}
    assert column(result, "num_retries") == {"a": 2, "b": 1}


def test_who_is_tried_again_goes_before_who_waits():
    """One at a time: "a" and "b" are at replica 0 when it fails, "c" comes while it is away."""
    broken = Operations(outages=(Outage(0, 2.5, 10.0),))
    result = served(
        row("a"), row("b"), row("c", at_s=3.0), operations=broken, replicas=1, router=RoundRobin(), max_num_seqs=1
    )
    assert column(result, "finish_s") == {"a": 16.5, "b": 20.5, "c": 24.5}


def test_a_replica_comes_back_with_an_empty_cache():
    """The second hits what the first left behind; the third comes after an outage."""
    same = {"prompt": 40, "ids": (7, 8)}
    broken = Operations(outages=(Outage(0, 30.0, 1.0),))
    rows = [row("a", **same), row("b", at_s=20.0, **same), row("c", at_s=40.0, **same)]
    assert column(served(*rows, operations=broken, replicas=1), "cached_tokens") == {"a": 0, "b": 32, "c": 0}


def test_a_router_forgets_what_a_failed_replica_held():
    """However old its knowledge may be."""
    router, same = Scripted(0, 0), {"prompt": 40, "ids": (7, 8)}
    broken = Operations(outages=(Outage(0, 30.0, 1.0),))
    rows = trace_of(row("a", **same), row("b", at_s=40.0, **same))
    simulate_fleet([SYNC], router, 1000.0, operations=broken, trace=rows)
    assert router.held == [[0], [0]]


def test_a_cold_start_takes_its_time():
    broken = Operations(outages=(Outage(0, 5.0, 10.0),), cold_start_s=7.0)
    result = served(row("a", output=2), row("b", at_s=8.0), operations=broken, replicas=1)
    assert column(result, "first_scheduled_s") == {"a": 0.0, "b": 22.0}
    assert states_of(result, 0) == [
        ("up", 0.0, 5.0), ("failed", 5.0, 15.0), ("booting", 15.0, 22.0), ("up", 22.0, 26.0)
    ]  # fmt: skip


def test_a_replica_may_fail_while_it_boots():
    broken = Operations(outages=(Outage(0, 5.0, 10.0), Outage(0, 18.0, 2.0)), cold_start_s=7.0)
    result = served(row("a", at_s=8.0), operations=broken, replicas=1)
    assert column(result, "first_scheduled_s") == {"a": 27.0}


def test_what_broke_twice_must_be_mended_twice():
    broken = Operations(outages=(Outage(0, 5.0, 10.0), Outage(0, 8.0, 20.0)))
    result = served(row("a", output=1), row("b", at_s=6.0), operations=broken, replicas=1)
    assert column(result, "first_scheduled_s") == {"a": 0.0, "b": 28.0}
    assert result.summary["replicas"][0]["failures"] == 1


def test_a_failure_and_its_end_at_one_moment_cost_what_ran():
    broken = Operations(outages=(Outage(0, 2.5, 0.0),))
    result = served(row("a"), operations=broken, replicas=1)
    assert (column(result, "finish_s"), result.summary["operations"]["lost_tokens"]) == ({"a": 6.5}, 2)


def test_requests_wait_in_the_fleets_queue_while_nobody_is_there():
    broken = Operations(outages=(Outage(0, 1.0, 20.0), Outage(1, 2.0, 30.0)))
    result = served(row("a", at_s=5.0), row("b", at_s=25.0), operations=broken)
    assert column(result, "first_scheduled_s") == {"a": 21.0, "b": 25.0}


def test_where_nobody_comes_back_a_run_ends_and_its_requests_are_lost():
    """One was there when the last replica failed, one came later."""
    broken = Operations(outages=(Outage(0, 1.5), Outage(1, 3.5)), random_outages=RandomOutages(1e6, 1.0))
    result = served(row("a", output=20), row("b", at_s=9.0), operations=broken)
    assert column(result, "reason") == dict.fromkeys("ab", "no replica came back to serve it")
    assert column(result, "replica") == {"a": -1, "b": -1}
    assert result.summary["requests"]["lost"] == 2
    assert result.summary["in_flight"]["mean"] is not None


# A replica is drained


def test_a_drain_loses_nothing():
    """Two are there at 5 s and finish; who comes then goes elsewhere; at 40 s it is back, and its turn comes."""
    drained = Operations(drains=(Drain(0, 5.0, 20.0),))
    rows = [row("a", output=20), row("b"), row("c", at_s=2.0, output=6), row("d", at_s=6.0)]
    rows += [row("e", at_s=45.0), row("f", at_s=45.0)]
    result = served(*rows, operations=drained, router=LeastLoaded())
    assert replica_of(result) == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1, "f": 0}
    assert states_of(result, 0) == [
        ("up", 0.0, 5.0), ("draining", 5.0, 20.0), ("off", 20.0, 40.0), ("up", 40.0, 49.0)
    ]  # fmt: skip
    assert (result.summary["requests"]["finished"], result.summary["operations"]["retries"]) == (6, 0)


def test_an_idle_replica_is_off_at_once_when_it_is_drained():
    result = served(row("a", output=20), operations=Operations(drains=(Drain(1, 5.0),)))
    assert states_of(result, 1) == [("up", 0.0, 5.0), ("off", 5.0, 20.0)]


@BOTH
def test_a_replica_that_fails_while_it_drains_stays_off(async_scheduling):
    both = Operations(outages=(Outage(0, 7.5, 2.0),), drains=(Drain(0, 5.0),))
    result = served(row("a", output=20), operations=both, async_scheduling=async_scheduling)
    assert [state for state, *_ in states_of(result, 0)] == ["up", "draining", "failed", "off"]
    assert column(result, "replica") == {"a": 1}


@BOTH
def test_a_drained_replica_may_be_back_at_once(async_scheduling):
    again = Operations(drains=(Drain(0, 5.0, 0.0),))
    rows = [row("a", output=20), row("b", at_s=30.0, output=20)]
    result = served(*rows, operations=again, replicas=1, async_scheduling=async_scheduling)
    assert column(result, "finish_s") == {"a": 20.0, "b": 50.0}


@pytest.mark.parametrize("kind", [RoundRobin, LeastLoaded])
def test_turns_are_even_among_those_that_are_there(kind):
    """One of three is away for a while: the others take turns, and all three do once it is back."""
    drained = Operations(drains=(Drain(1, 50.0, 50.0),))
    rows = [row(str(number), at_s=10.0 * number + 1, output=1) for number in range(20)]
    replicas = list(replica_of(served(*rows, operations=drained, replicas=3, router=kind())).values())
    assert Counter(replicas[5:10]) in (Counter({0: 3, 2: 2}), Counter({0: 2, 2: 3}))
    assert Counter(replicas[11:20]) == {0: 3, 1: 3, 2: 3}


# What it costs


def test_who_boots_and_drains_is_paid_for_and_who_is_up_is_available():
    """40 seconds: up for 5 and draining for 15, off for 10, booting for 4, up for 6."""
    drained = Operations(drains=(Drain(0, 5.0, 10.0),), cold_start_s=4.0)
    result = served(row("a", output=20), row("b", at_s=39.0, output=1), operations=drained, replicas=1)
    measures = result.summary["replicas"][0]
    assert (measures["availability"], measures["replica_s"]) == (11 / 40, 30.0)
    assert result.summary["operations"]["replicas_up"] == {"mean": 11 / 40, "max": 1}


def test_a_quiet_fleet_says_nothing_of_operations():
    result = served(row("a"), operations=Operations())
    assert ("operations" in result.summary, "lost" in result.summary["requests"], "states" in result.tables) == (
        False, False, False,
    )  # fmt: skip


def test_what_was_asked_for_is_said_in_the_command_lines_words():
    scaling = Autoscaling(target_kv_usage=0.7, max_replicas=4)
    operations = Operations((Outage(1, 2.5, 3.0),), RandomOutages(3600, 60), (Drain(0, 4.0),), scaling, 5.0, 3)
    assert served(row("a"), operations=operations).scenario["fleet"] == {
        "num_replicas": 2, "router": "round-robin", "router_staleness_s": 0.0,
        "outages": ["replica=1,at=2.5,for=3"], "random_outages": "mtbf=3600,mttr=60", "drains": ["replica=0,at=4"],
        "autoscaling": "kv-usage=0.7,min=1,max=4,every=15,cooldown=60", "cold_start_s": 5.0, "max_retries": 3,
    }  # fmt: skip


def test_equal_seeds_fail_alike_and_others_do_not():
    rows = [row(str(number), at_s=5.0 * number) for number in range(60)]
    first, again, other = (
        served(*rows, operations=Operations(random_outages=RandomOutages(40, 10, seed))).tables["states"]["start_s"]
        for seed in (1, 1, 2)
    )
    assert (first.tolist() == again.tolist(), first.tolist() == other.tolist()) == (True, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Outage(-1, 0.0), "replica must be a number from 0, got -1"),
        (lambda: Drain(0, -2.0), "at must be a number of seconds of at least 0, got -2"),
        (lambda: Outage(0, 0.0, float("inf")), "for must be a number of seconds of at least 0, got inf"),
        (lambda: RandomOutages(1.0, 0.0), "mttr must be a number of seconds above 0, got 0"),
        (lambda: Operations(cold_start_s=-1.0), "cold_start_s must be a number of seconds of at least 0, got -1"),
        (lambda: Operations(max_retries=-1), "max_retries must be at least 0, got -1"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


# What always holds

times_s = st.integers(0, 480).map(lambda eighths: eighths / 8)
durations_s = st.none() | st.integers(0, 160).map(lambda eighths: eighths / 8)
numbers = st.integers(0, 4)


@st.composite
def all_operations(draw):
    """Everything at once, or nothing."""
    outages = draw(st.lists(st.builds(Outage, numbers, times_s, durations_s), max_size=5))
    drains = draw(st.lists(st.builds(Drain, numbers, times_s, durations_s), max_size=3))
    random_outages = draw(st.none() | st.builds(RandomOutages, st.floats(1, 60), st.floats(0.1, 20), st.integers(0, 9)))
    target = draw(st.sampled_from([None, {"target_running": 1.5}, {"target_kv_usage": 0.3}]))
    scaling = None if target is None else Autoscaling(
        **target, min_replicas=draw(st.integers(1, 2)), max_replicas=draw(st.integers(2, 5)),
        every_s=draw(st.sampled_from([1.0, 5.0])), cooldown_s=draw(st.sampled_from([0.0, 7.0])),
    )  # fmt: skip
    return Operations(
        tuple(outages), random_outages, tuple(drains), scaling,
        cold_start_s=draw(st.sampled_from([0.0, 0.5, 3.0])), max_retries=draw(st.sampled_from([0, 1, 100])),
    )  # fmt: skip


def look_at(env, fleet, looks_s):
    for at_s in sorted(looks_s):
        yield wait_until(env, at_s)
        check_now(fleet)


@pytest.mark.parametrize("kind", ROUTERS)
@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(requests, min_size=1, max_size=15),
    sizes=st.lists(st.sampled_from([18, 20, 40]), min_size=1, max_size=4),
    async_scheduling=st.booleans(),
    budget=st.sampled_from([None, 5, 40]),
    operations=all_operations(),
    looks_s=st.lists(st.floats(0, 60), max_size=10),
)
def test_invariants_hold_whatever_fails(kind, drawn, sizes, async_scheduling, budget, operations, looks_s):
    """Looked at in every moment of its own choice, and at the end: every request has ended, once."""
    rows = rows_of(drawn)
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(size, async_scheduling, budget) for size in sizes], kind(), operations=operations)
    env.process(look_at(env, fleet, looks_s))
    serve_all(env, fleet, *rows)
    fleet.give_up()
    results = [replica.result() for replica in fleet.replicas]
    check_fleet(fleet, results)
    ended = [name for result in results for name in result.tables["requests"]["request_id"]]
    ended += [arrival.row.request_id for arrival in fleet.lost_in_queue]
    assert sorted(ended) == sorted(each.request_id for each in rows)


# Sabotage: each check names what was broken


@pytest.fixture
def failed():
    """A fleet of two that has lost a replica, has served three requests all the same, and has lost one."""
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, True)] * 2, RoundRobin(), operations=Operations((Outage(0, 2.5),), max_retries=0))
    serve_all(env, fleet, row("a"), row("b", 1.0), row("c", 3.0), row("d", 4.0))
    return fleet, [replica.result() for replica in fleet.replicas]


def test_nothing_is_wrong_with_it(failed):
    check_fleet(*failed)
    assert failed[0].replicas[0].lost_tokens == 2


def test_a_token_that_was_lost_and_not_counted_is_noticed(failed):
    failed[0].replicas[0].lost_tokens -= 1
    with pytest.raises(InvariantError, match=r"^tokens-once: replica 0 generated 1 tokens after first ones"):
        check_fleet(*failed)


def test_a_request_that_was_lost_and_not_written_down_is_noticed(failed):
    fleet, results = failed
    with pytest.raises(InvariantError, match=r"^requests-add-up: 4 requests arrived, 3 ended and 0 are in flight"):
        check_fleet(fleet, results[1:])


def test_time_that_lost_requests_were_there_counts(failed):
    failed[0].lost_after_s = 0.0
    with pytest.raises(InvariantError, match=r"^littles-law:"):
        check_fleet(*failed)


def test_a_request_at_a_replica_that_is_gone_is_noticed(failed):
    fleet, _ = failed
    fleet.replicas[0].load.change(1, 0.0)
    with pytest.raises(InvariantError, match=r"^requests-add-up: 1 requests were sent to replica 0"):
        check_now(fleet)


def test_a_block_that_a_failing_replica_has_lost_is_noticed():
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, True)], RoundRobin())
    fleet.replicas[0].scheduler.manager.pool.take(1)
    fleet.replicas[0].lives.fail()
    with pytest.raises(InvariantError, match=r"^conservation:"):
        env.run()
