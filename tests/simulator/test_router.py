"""Routers: whom they choose, from what a router can see."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrival import Arrival
from simulator.router import (
    LeastLoaded,
    OneQueue,
    PowerOfTwoChoices,
    PrefixAware,
    RoundRobin,
    SessionAffinity,
    router_name,
)
from workloads import TraceRequest


@dataclass
class Seen:
    """A replica as a router sees it; `held` has the tokens that it holds of each request's prompt."""

    name: str = "0"
    num_in_flight: int = 0
    max_num_seqs: int = 4
    held: dict[str, int] = field(default_factory=dict)

    def held_tokens(self, arrival: Arrival) -> int:
        return self.held.get(arrival.row.request_id, 0)


def arrival(name: str = "a", session: str | None = None) -> Arrival:
    """1,000 prompt tokens, of which others may share 960."""
    return Arrival(TraceRequest(name, 0.0, 1000, 10, tuple(range(60)), session), 16, 0)


def seen(*in_flight: int) -> list[Seen]:
    return [Seen(str(number), count) for number, count in enumerate(in_flight)]


def choices(router, replicas, count: int) -> list[int | None]:
    return [router.choose(arrival(), replicas) for _ in range(count)]


def test_round_robin_takes_turns_whatever_the_load():
    assert choices(RoundRobin(), seen(9, 0, 0), 5) == [0, 1, 2, 0, 1]


def test_round_robin_goes_on_when_a_replica_has_gone():
    router = RoundRobin()
    assert choices(router, seen(0, 0, 0), 3) + choices(router, seen(0, 0), 3) == [0, 1, 2, 1, 0, 1]


def test_least_loaded_counts_requests_in_flight():
    assert choices(LeastLoaded(), seen(3, 1, 2), 2) == [1, 1]


def test_equally_loaded_replicas_take_turns():
    """An idle fleet does not send everything to its first replica."""
    assert choices(LeastLoaded(), seen(0, 0, 5, 0), 4) == [0, 1, 3, 0]


def test_of_two_choices_the_less_loaded_is_taken():
    """With two replicas these are always the two."""
    assert choices(PowerOfTwoChoices(), seen(3, 1), 20) == [1] * 20


def test_two_choices_never_take_the_most_loaded_of_several():
    taken = Counter(choices(PowerOfTwoChoices(), seen(5, 1, 2, 3), 2000))
    assert 0 not in taken
    assert taken[1] > taken[2] > taken[3]  # in 1/2, 1/3 and 1/6 of the pairs


def test_two_choices_are_drawn_from_the_seed():
    first, again, other = (choices(PowerOfTwoChoices(seed), seen(*[0] * 10), 50) for seed in (1, 1, 2))
    assert first == again != other


def test_two_choices_among_one():
    assert choices(PowerOfTwoChoices(), seen(7), 1) == [0]


def by_session(replicas: list[Seen]) -> dict[str, str]:
    """Session to the name of the replica that it is sent to."""
    router = SessionAffinity()
    sessions = [f"c{number}" for number in range(1000)]
    return {name: replicas[router.choose(arrival(session=name), replicas)].name for name in sessions}


def test_a_session_stays_where_it_is_and_all_replicas_get_some():
    chosen = by_session(seen(0, 9, 0, 0))
    assert chosen == by_session(seen(5, 0, 0, 0))
    assert all(200 < count < 300 for count in Counter(chosen.values()).values())


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_when_a_replica_goes_only_its_sessions_move(gone):
    replicas = seen(0, 0, 0, 0)
    before = by_session(replicas)
    after = by_session([replica for replica in replicas if replica.name != str(gone)])
    assert {name for name in before if before[name] != after[name]} == {
        name for name, replica in before.items() if replica == str(gone)
    }


def test_without_a_session_the_least_loaded_is_taken():
    assert choices(SessionAffinity(), seen(2, 1), 1) == [1]


def test_the_longest_prefix_attracts():
    replicas = [Seen("0"), Seen("1", held={"a": 400}), Seen("2", held={"a": 600})]
    assert choices(PrefixAware(), replicas, 1) == [2]


@pytest.mark.parametrize(("request_tokens", "chosen"), [(0, 1), (100, 1), (400, 0)])
def test_load_outweighs_a_prefix_at_so_many_tokens_a_request(request_tokens, chosen):
    """Two requests more stand where 600 tokens more are held."""
    replicas = [Seen("0", 1), Seen("1", 3, held={"a": 600})]
    assert choices(PrefixAware(request_tokens), replicas, 1) == [chosen]


def test_without_prefixes_it_is_the_least_loaded():
    assert choices(PrefixAware(), seen(1, 0, 0), 3) == choices(LeastLoaded(), seen(1, 0, 0), 3)


def test_a_weight_below_zero_is_refused():
    with pytest.raises(ValueError, match=r"request_tokens must be at least 0, got -1"):
        PrefixAware(-1)


def test_one_queue_lets_requests_wait_until_a_replica_has_a_place():
    assert choices(OneQueue(), seen(4, 3), 1) == [1]
    assert choices(OneQueue(), seen(4, 4), 1) == [None]


def test_one_queue_fills_replicas_by_their_size():
    small, large = Seen("0", 2, max_num_seqs=4), Seen("1", 3, max_num_seqs=16)
    assert choices(OneQueue(), [small, large], 1) == [1]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 30))
def test_every_choice_is_a_replica_that_is_there(in_flight, count):
    routers = [RoundRobin(), LeastLoaded(), PowerOfTwoChoices(), SessionAffinity(), PrefixAware()]
    chosen = {number for router in routers for number in choices(router, seen(*in_flight), count)}
    assert chosen <= set(range(len(in_flight)))


def test_routers_are_named_as_on_the_command_line():
    assert [router_name(router) for router in (RoundRobin(), PowerOfTwoChoices(), OneQueue())] == [
        "round-robin",
        "power-of-two-choices",
        "one-queue",
    ]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 960)), min_size=1, max_size=8),
    st.sampled_from([0, 100, 500, 2000]),
)
def test_nobody_cheaper_is_left_unasked(replicas, request_tokens):
    """(requests in flight, tokens held) of each: not all are asked, and it makes no difference."""
    views = [Seen(str(number), load, held={"a": held}) for number, (load, held) in enumerate(replicas)]
    chosen = PrefixAware(request_tokens).choose(arrival(), views)
    costs = [request_tokens * load - held for load, held in replicas]
    assert chosen == costs.index(min(costs))
