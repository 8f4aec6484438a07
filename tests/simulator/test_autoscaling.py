"""A fleet whose size follows a rule: what it sees, when it acts, and whom it lets go."""

import numpy as np
import pytest
import simpy

from simulator.arrival import Arrival
from simulator.autoscaling import Autoscaling, scale_to
from simulator.fleet import Fleet, simulate_fleet
from simulator.fleet_history import num_over_time
from simulator.lives import PAID, State
from simulator.operations import Operations
from simulator.outages import Outage
from simulator.router import LeastLoaded
from tests.simulator.fleets import SMALL, deployed, row, trace_of

THREE_EACH = Autoscaling(target_running=3, max_replicas=5, every_s=5.0, cooldown_s=20.0)


def steps_of_load(*phases: tuple[float, float], output: int = 20):
    """(until, requests a second): evenly spaced requests of so many seconds each."""
    at_s, rows = 0.0, []
    for until_s, rate_per_s in phases:
        while at_s < until_s:
            rows.append(row(str(len(rows)), at_s=at_s, output=output))
            at_s += 1 / rate_per_s
    return trace_of(*rows)


def scaled(trace, rule=THREE_EACH, replicas=1, outages=(), cold_start_s=3.0, **changes):
    operations = Operations(outages=outages, autoscaling=rule, cold_start_s=cold_start_s)
    scenario = SMALL.model_copy(update={"max_num_seqs": 8, "num_gpu_blocks_override": 60, **changes})
    return simulate_fleet([scenario] * replicas, LeastLoaded(), operations=operations, trace=trace)


def decisions_s(result) -> list[float]:
    """When replicas were started or let go."""
    states = result.tables["states"]
    is_decision = np.isin(states["state"].astype(str), ["booting", "draining", "off"]) & (states["start_s"] > 0)
    follows_draining = (states["state"] == "off") & (np.roll(states["state"], 1) == "draining")
    return np.unique(states["start_s"][is_decision & ~follows_draining]).tolist()


def most_wanted(result) -> int:
    """Replicas up or on their way, at most."""
    return int(num_over_time(result.tables["states"], frozenset({State.UP, State.BOOTING}))[1].max())


RATES = ((200.0, 0.1), (600.0, 0.55), (1000.0, 0.1))
"""Two requests at a time, then eleven, then two."""


@pytest.fixture(scope="module")
def followed():
    return scaled(steps_of_load(*RATES))


def num_up(result, at_s: float) -> int:
    states = result.tables["states"]
    is_up = (states["state"] == "up") & (states["start_s"] <= at_s) & (states["end_s"] > at_s)
    return int(is_up.sum())


def test_a_fleet_follows_a_step_of_the_rate_up_and_down(followed):
    """Eleven requests at three each are four replicas."""
    assert [num_up(followed, at_s) for at_s in (190, 500, 950)] == [1, 4, 1]


def test_nothing_is_known_before_it_happens(followed):
    """The first decision comes when the load has grown, and a replica takes requests a cold start later."""
    first_s = decisions_s(followed)[0]
    assert 200 < first_s <= 220
    assert num_up(followed, first_s + 2.9) == 1
    assert num_up(followed, first_s + 3.1) == 2


def test_no_decision_comes_within_the_cooldown_of_another(followed):
    between_s = np.diff(decisions_s(followed))
    assert (len(between_s) > 2, between_s.min() >= 20.0) == (True, True)


def test_letting_replicas_go_costs_no_request_anything(followed):
    operations = followed.summary["operations"]
    assert (followed.summary["requests"]["finished"], operations["retries"], operations["lost_tokens"]) == (
        followed.summary["requests"]["arrived"], 0, 0,
    )  # fmt: skip


def test_fewer_replicas_are_paid_for_than_would_always_do(followed):
    states = followed.tables["states"]
    span_s = states["end_s"].max() - states["start_s"].min()
    assert followed.summary["operations"]["replica_s"] < 0.7 * 4 * span_s


@pytest.mark.parametrize(("most", "num_most"), [(2, 2), (3, 3), (4, 4)])
def test_bounds_hold(most, num_most):
    rule = Autoscaling(target_running=3, min_replicas=2, max_replicas=most, every_s=5.0, cooldown_s=20.0)
    result = scaled(steps_of_load(*RATES), rule, replicas=2)
    assert (most_wanted(result), num_up(result, 190)) == (num_most, 2)


def test_a_full_fleet_is_seen_to_be_full():
    """A replica runs four at most, fewer than the target: only those that wait show that it is too few."""
    rule = Autoscaling(target_running=6, max_replicas=4, every_s=5.0, cooldown_s=10.0)
    result = scaled(steps_of_load((200.0, 0.5)), rule, max_num_seqs=4)
    assert most_wanted(result) >= 2


def test_the_pools_usage_is_a_target_too():
    """Four requests of two or three blocks fill most of a pool of seventeen."""
    rule = Autoscaling(target_kv_usage=0.3, max_replicas=4, every_s=5.0, cooldown_s=10.0)
    trace = steps_of_load((300.0, 0.3), (600.0, 0.02))
    result = scaled(trace, rule, num_gpu_blocks_override=18, max_num_seqs=4)
    assert [num_up(result, at_s) >= 2 for at_s in (5, 250, 590)] == [False, True, False]


def test_who_fails_is_not_waited_for():
    """The only replica breaks for good: another one is started in its place."""
    rule = Autoscaling(target_running=10, every_s=5.0)
    result = scaled(steps_of_load((100.0, 0.1)), rule, outages=(Outage(0, 42.5),))
    assert result.summary["requests"]["finished"] == 10
    assert [replica.summary["requests"]["arrived"] for replica in result.replicas] == [3, 7]


def test_a_replica_that_was_let_go_is_started_again_rather_than_a_new_one():
    """Two busy times with a quiet one between them: no more replicas than one of them needs."""
    result = scaled(steps_of_load((100.0, 0.1), (300.0, 0.55), (500.0, 0.1), (700.0, 0.55)))
    states = result.tables["states"]
    assert len(result.replicas) == num_over_time(states, PAID)[1].max()
    assert states["state"][states["replica"] == 3].tolist().count("up") == 2


def test_it_stops_looking_when_everybody_is_served():
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, True)], LeastLoaded(), operations=Operations(autoscaling=THREE_EACH))
    env.process(THREE_EACH.run(env, fleet))
    fleet.submit(Arrival(row("a"), 16, 0))
    fleet.close()
    env.run()
    assert env.now == 4.0  # when the request ends, which is also when it looks


# Whom it lets go


@pytest.fixture
def three():
    """Replica 0 has two requests, 1 and 2 have one each; 2 is younger than 1."""
    env = simpy.Environment()
    fleet = Fleet(env, [deployed(40, False)] * 2, LeastLoaded(), operations=Operations(cold_start_s=2.0))
    fleet.add().lives.start()
    env.run(until=3.0)
    for serial in range(4):
        fleet.submit(Arrival(row(str(serial), output=50), 16, serial))
    env.run(until=4.0)
    return env, fleet


def wanted(fleet) -> list[int]:
    return [number for number, replica in enumerate(fleet.replicas) if replica.lives.is_wanted]


def test_the_least_loaded_goes_first_and_of_equals_the_youngest(three):
    _, fleet = three
    assert [replica.num_in_flight for replica in fleet.replicas] == [2, 1, 1]
    left = []
    for num in (2, 1):
        assert scale_to(fleet, num)
        left.append(wanted(fleet))
    assert left == [[0, 1], [0]]


def test_who_still_boots_goes_before_all_others(three):
    env, fleet = three
    scale_to(fleet, 5)
    scale_to(fleet, 3)
    assert (wanted(fleet), [replica.lives.state for replica in fleet.replicas[3:]]) == ([0, 1, 2], [State.OFF] * 2)
    env.run()
    assert not any(replica.lives.state in {State.BOOTING} for replica in fleet.replicas)


def test_enough_is_enough(three):
    assert not scale_to(three[1], 3)


def test_a_draining_replica_is_not_called_back(three):
    """It has still its request when another is wanted: one more is started."""
    _, fleet = three
    scale_to(fleet, 2)
    scale_to(fleet, 3)
    assert [replica.lives.state for replica in fleet.replicas] == [
        State.UP, State.UP, State.DRAINING, State.BOOTING,
    ]  # fmt: skip
    assert sum(replica.lives.state in PAID for replica in fleet.replicas) == 4


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({}, "needs one target, running or kv-usage, and not both"),
        ({"target_running": 3, "target_kv_usage": 0.5}, "needs one target, running or kv-usage, and not both"),
        ({"target_running": 0}, "running must be a number of requests above 0, got 0"),
        ({"target_kv_usage": 1.0}, "kv-usage must be between 0 and 1, got 1"),
        ({"target_running": 3, "min_replicas": 5, "max_replicas": 4}, "needs 1 <= min <= max, got min=5 and max=4"),
        ({"target_running": 3, "every_s": 0}, "every must be a number of seconds above 0, got 0"),
        ({"target_running": 3, "cooldown_s": -1}, "cooldown must be a number of seconds of at least 0, got -1"),
    ],
)
def test_nonsense_is_refused(stated, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Autoscaling(**stated)
