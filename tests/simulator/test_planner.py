"""The search for the cheapest fleet, in worlds that are known: the answer of asking of every fleet, by asking few."""

import math
from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from simulator.confidence import mean_interval
from simulator.planner import Candidate, Choice, Limits, Search, highest_rates
from simulator.planner_runs import FleetVerdict
from simulator.planner_study import FleetPlan, show_a_cheaper_one
from simulator.planner_words import fate_in_words


@dataclass(frozen=True)
class Said:
    holds: bool


@dataclass
class World:
    """Fleets hold from a number of replicas on; nobody but the evaluation knows it."""

    enough: dict[str, int]
    """By choice."""
    asked: int = 0

    def __call__(self, candidate: Candidate) -> Said:
        self.asked += 1
        return Said(candidate.num_replicas >= self.enough[candidate.choice.name])


def choice(name: str, dollars: float, num_gpus: int = 1, **known) -> Choice:
    return Choice(name, dollars, num_gpus, **known)


def exhaustive(search: Search, world: World) -> Candidate | None:
    """Ask of every fleet."""
    fleets = [
        Candidate(each, number)
        for each in search.choices
        if each.wall is None
        for number in range(1, search.most_replicas(each) + 1)
    ]
    return min((each for each in fleets if world(each).holds), key=search.rank, default=None)


# ------------------------------------------------------------------------------------------------------- stories


def test_the_cheapest_fleet_that_holds_is_found_though_each_of_its_replicas_is_dear():
    choices = [choice("small", 1.0, guess=9), choice("large", 4.0, guess=2)]
    assert Search(choices, World({"small": 9, "large": 2})).run() == Candidate(choices[1], 2)


def test_a_choice_that_cannot_beat_the_answer_is_asked_once():
    world = World({"good": 3, "bad": 50})
    search = Search([choice("good", 2.0, guess=3, least_replicas=3), choice("bad", 1.0, guess=50)], world)
    search.run()
    assert [(each.choice.name, each.num_replicas) for each in search.verdicts] == [("good", 3), ("bad", 5)]


def test_a_choice_whose_least_fleet_is_too_dear_is_not_asked():
    world = World({"good": 3, "dear": 2})
    search = Search([choice("good", 2.0, guess=3, least_replicas=3), choice("dear", 3.5, least_replicas=2)], world)
    assert (search.run().choice.name, world.asked, search.fate(search.choices[1])) == ("good", 1, "bounded")


def test_a_walled_choice_is_never_asked():
    world = World({})
    search = Search([choice("slow", 1.0, wall="TPOT p99 is 50 ms on an empty server")], world)
    assert (search.run(), world.asked, search.fate(search.choices[0])) == (None, 0, "walled")


def test_a_spare_replica_is_paid_for_and_does_not_serve():
    small, large = choice("small", 1.0, guess=4), choice("large", 3.9, guess=1)
    world = World({"small": 4, "large": 1})
    assert Search([small, large], world).run() == Candidate(large, 1)
    with_spare = Search([small, large], world, Limits(spare=1))
    assert with_spare.run() == Candidate(small, 4)
    assert (with_spare.bought(with_spare.best), with_spare.dollars_per_hour(with_spare.best)) == (5, 5.0)


def test_more_than_the_limit_is_never_asked():
    search = Search([choice("a", 1.0, num_gpus=4, guess=100)], World({"a": 5}), Limits(max_gpus=16))
    assert search.run() is None
    assert max(each.num_replicas for each in search.verdicts) == 4
    assert search.fate(search.choices[0]) == "fails"


def test_of_equal_prices_fewer_gpus_and_then_the_name_decide():
    choices = [choice("b", 4.0, num_gpus=2), choice("a", 4.0, num_gpus=2), choice("c", 2.0, num_gpus=2, guess=2)]
    assert Search(choices, World({"a": 1, "b": 1, "c": 2})).run() == Candidate(choices[1], 1)


def test_what_costs_nothing_is_as_large_as_allowed():
    free = choice("free", 0.0, guess=3)
    assert Search([free], World({"free": 3}), Limits(max_gpus=8)).run() == Candidate(free, 3)


def test_the_nearest_cheaper_fleet_is_the_dearest_that_was_seen_to_fail():
    search = Search([choice("a", 2.0, guess=5), choice("b", 3.0, guess=4)], World({"a": 5, "b": 4}))
    search.run()
    nearest = search.nearest_cheaper()
    assert (nearest.choice.name, nearest.num_replicas) == ("b", 3)


def test_what_costs_the_same_is_not_cheaper():
    """Of equal prices the name decides, and `a` fails; but what is told beside the answer costs less than it."""
    search = Search([choice("a", 4.0), choice("b", 2.0, guess=2)], World({"a": 9, "b": 2}), Limits(max_gpus=2))
    assert search.run() == Candidate(search.choices[1], 2)
    assert Candidate(search.choices[0], 1) in search.verdicts
    assert search.nearest_cheaper() == search.dearest_below_best() == Candidate(search.choices[1], 1)


def test_the_next_best_can_be_looked_for_among_some_choices():
    choices = [choice("a", 1.0), choice("b", 2.0), choice("c", 3.0)]
    search = Search(choices, World({"a": 1, "b": 1, "c": 2}))
    search.run()
    assert search.next_best(1, 6, choices[2:]) == [Candidate(choices[2], 2)]


@dataclass
class Judged(World):
    """The same, and fleets that do not hold have queues that grow."""

    def __call__(self, candidate: Candidate) -> FleetVerdict:
        is_growing = not super().__call__(candidate).holds
        return FleetVerdict(findings=(), growth=mean_interval([0.0]), is_growing=is_growing, outcomes=())


def said_of(search: Search, each: Choice) -> str:
    """What a plan says of a choice."""
    return fate_in_words(FleetPlan(search, {}, None), each)


def test_a_fleet_far_below_its_bound_may_be_the_most_that_was_seen_to_fail():
    """Arithmetic alone has excluded all that is cheaper: one of these is asked for to be shown, below the bound."""
    dear, cheap = choice("a", 4.0), choice("b", 1.0, least_replicas=10)
    search = Search([dear, cheap], Judged({"a": 1, "b": 12}))
    search.run()
    show_a_cheaper_one(search)
    assert said_of(search, cheap) == "3 replicas: queue grows, and more cost more than the answer"


def test_a_next_best_fleet_that_could_not_be_lowered_to_its_least_holds_all_the_same():
    cheap, dear = choice("a", 1.0), choice("b", 2.0, least_replicas=2, guess=12)
    search = Search([cheap, dear], Judged({"a": 1, "b": 5}))
    search.run()
    assert search.next_best(3, most_evaluations=6) == [Candidate(dear, 7)]
    assert said_of(search, dear) == "holds with 7 replicas"


# -------------------------------------------------------------------------------------------------- against force


@st.composite
def worlds(draw):
    """(choices with bounds that are bounds and guesses that may be wrong, how many are enough, limits)."""
    choices, enough = [], {}
    for nth in range(draw(st.integers(1, 6))):
        name = f"choice {nth}"
        enough[name] = draw(st.integers(1, 40))
        least = draw(st.integers(1, enough[name]))
        dollars = draw(st.integers(0, 12)) / 4
        wall = "a wall" if draw(st.booleans()) and draw(st.booleans()) else None
        guess = draw(st.integers(1, 50))
        choices.append(Choice(name, dollars, draw(st.sampled_from([1, 2, 4])), least, "", max(least, guess), wall))
    return choices, enough, Limits(draw(st.integers(1, 64)), draw(st.integers(0, 2)))


@given(worlds())
def test_the_answer_is_that_of_asking_of_every_fleet(world):
    choices, enough, limits = world
    search = Search(choices, World(enough), limits)
    assert search.run() == exhaustive(search, World(enough))


@given(worlds())
def test_nothing_is_asked_twice_nor_below_its_bound(world):
    choices, enough, limits = world
    asking = World(enough)
    search = Search(choices, asking, limits)
    search.run()
    assert asking.asked == len(search.verdicts)
    assert all(each.num_replicas >= each.choice.least_replicas for each in search.verdicts)


@given(worlds())
def test_what_is_one_less_was_seen_to_fail_or_is_below_the_bound(world):
    choices, enough, limits = world
    search = Search(choices, World(enough), limits)
    best = search.run()
    assume(best is not None and best.num_replicas > best.choice.least_replicas)
    assert not search.verdicts[Candidate(best.choice, best.num_replicas - 1)].holds


@given(worlds())
def test_the_next_best_are_the_least_fleets_of_their_choices(world):
    choices, enough, limits = world
    search = Search(choices, World(enough), limits)
    best = search.run()
    assume(best is not None)
    found = search.next_best(3, most_evaluations=10_000)
    assert [each.num_replicas for each in found] == [enough[each.choice.name] for each in found]
    assert found == sorted(found, key=search.rank)
    possible = [each for each in choices if each.wall is None and enough[each.name] <= search.most_replicas(each)]
    assert len(found) == min(3, len(possible) - 1)


@given(worlds())
def test_with_right_guesses_they_are_the_cheapest_of_all_others(world):
    choices, enough, limits = world
    choices = [replace(each, guess=enough[each.name]) for each in choices]
    search = Search(choices, World(enough), limits)
    best = search.run()
    assume(best is not None)
    least = [
        Candidate(each, enough[each.name])
        for each in choices
        if each.wall is None and each != best.choice and enough[each.name] <= search.most_replicas(each)
    ]
    assert search.next_best(3, most_evaluations=10_000) == sorted(least, key=search.rank)[:3]


@given(worlds(), st.integers(0, 5))
def test_the_next_best_cost_no_more_than_was_allowed(world, most):
    choices, enough, limits = world
    asking = World(enough)
    search = Search(choices, asking, limits)
    search.run()
    before = asking.asked
    search.next_best(3, most)
    assert asking.asked - before <= most


# ----------------------------------------------------------------------------------------------------- rates


@given(st.dictionaries(st.integers(0, 5), st.floats(0.2, 50.0), min_size=1), st.floats(0.5, 5.0))
def test_each_seed_finds_its_own_highest_rate(highest, start):
    brackets = highest_rates(
        lambda rates: {seed: rates[seed] <= highest[seed] for seed in rates}, list(highest), start, 0.05
    )
    assert all(low <= highest[seed] < high <= low / 0.95 * (1 + 1e-9) for seed, (low, high) in brackets.items())


def test_where_not_even_a_fiftieth_holds_the_rate_is_none():
    assert highest_rates(lambda rates: dict.fromkeys(rates, False), [7], 1.0, 0.05)[7][0] == 0.0


def test_seeds_are_asked_side_by_side():
    rounds = []

    def judge(rates):
        rounds.append(sorted(rates))
        return {seed: rate <= 1.0 + seed for seed, rate in rates.items()}

    brackets = highest_rates(judge, [0, 1], 1.0, 0.2)
    assert rounds[0] == [0, 1]
    assert all(math.isfinite(high) for _, high in brackets.values())
