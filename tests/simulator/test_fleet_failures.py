"""Replicas that fail, are drained and come back: what becomes of requests, and what always holds."""

from functools import cache

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.errors import InvariantError
from simulator.arrival import Arrival
from simulator.autoscaling import Autoscaling
from simulator.deployment import Deployment, deploy
from simulator.fleet import Fleet, simulate_fleet
from simulator.fleet_checks import check_fleet, check_now
from simulator.operations import Operations, operate
from simulator.outages import Drain, Outage, RandomOutages
from simulator.replica import wait_until
from simulator.router import LeastLoaded, RoundRobin
from tests.simulator.test_fleet import MANY, ROUTERS, SMALL, Scripted, deployed, replica_of, requests, row, trace_of

SYNC = SMALL.model_copy(update={"async_scheduling": False})


def served(*rows, operations, replicas=2, router=None, scenario=SYNC):
    return simulate_fleet([scenario] * replicas, router or RoundRobin(), operations=operations, trace=trace_of(*rows))


def by_name(result, column: str) -> dict[str, object]:
    return dict(zip(result.requests["request_id"], result.requests[column], strict=True))


# What always holds

times_s = st.integers(0, 480).map(lambda eighths: eighths / 8)
durations_s = st.none() | st.integers(0, 160).map(lambda eighths: eighths / 8)
numbers = st.integers(0, 4)


@st.composite
def all_operations(draw):
    """Everything at once, or nothing."""
    outages = draw(st.lists(st.builds(Outage, numbers, times_s, durations_s), max_size=5))
    drains = draw(st.lists(st.builds(Drain, numbers, times_s, durations_s), max_size=3))
    random_outages = draw(
        st.none() | st.builds(RandomOutages, st.floats(1, 60), st.floats(0.1, 20), st.integers(0, 9))
    )
    target = draw(st.sampled_from([None, {"target_running": 1.5}, {"target_kv_usage": 0.3}]))
    scaling = None if target is None else Autoscaling(
        **target, min_replicas=draw(st.integers(1, 2)), max_replicas=draw(st.integers(2, 5)),
        every_s=draw(st.sampled_from([1.0, 5.0])), cooldown_s=draw(st.sampled_from([0.0, 7.0])),
    )  # fmt: skip
    return Operations(
        tuple(outages), random_outages, tuple(drains), scaling,
        cold_start_s=draw(st.sampled_from([0.0, 0.5, 3.0])), max_retries=draw(st.sampled_from([0, 1, 100])),
    )  # fmt: skip


def deliver(env, fleet, rows):
    for serial, each in enumerate(rows):
        if each.arrival_s > env.now:
            yield wait_until(env, each.arrival_s)
        fleet.submit(Arrival(each, 16, serial))
    fleet.close()


def look_at(env, fleet, looks_s):
    for at_s in sorted(looks_s):
        yield wait_until(env, at_s)
        check_now(fleet)


@cache
def server(num_blocks: int, async_scheduling: bool, budget: int | None) -> Deployment:
    """A small budget of tokens lets decodes miss steps."""
    changes = {"num_gpu_blocks_override": num_blocks, "async_scheduling": async_scheduling}
    return deploy(SMALL.model_copy(update={**changes, "max_num_batched_tokens": budget}))


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
    rows = [
        row(str(serial), float(at_s), prompt, output, range(shared), session)
        for serial, (at_s, prompt, output, shared, session) in enumerate(sorted(drawn, key=lambda each: each[0]))
    ]
    env = simpy.Environment()
    fleet = Fleet(env, [server(size, async_scheduling, budget) for size in sizes], kind(), operations=operations)
    env.process(deliver(env, fleet, rows))
    env.process(look_at(env, fleet, looks_s))
    operate(env, fleet)
    env.run()
    fleet.give_up()
    results = [replica.result() for replica in fleet.replicas]
    check_fleet(fleet, results)
    ended = [name for result in results for name in result.tables["requests"]["request_id"]]
    ended += [arrival.row.request_id for arrival in fleet.lost_in_queue]
    assert sorted(ended) == sorted(each.request_id for each in rows)
