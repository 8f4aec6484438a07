"""Search for the cheapest fleet: which fleets to try, in which order, and what a trial proves. Nothing runs here.

Whoever calls says what a fleet costs and at least needs (`Choice`), and answers whether one holds (`Evaluate`):

1. Choices are tried in the order of what their guessed fleet costs.
2. Of a choice, the largest fleet that is still cheaper than the best so far is asked for. If it fails, so do all
   smaller ones: the choice is beaten by one evaluation. If it holds, the least replicas are found by bisection.
3. A choice whose least fleet (a proven bound) costs no less than the best so far needs no evaluation at all.

It rests on one assumption, which `docs/planning.md` discusses: with a replica more, a fleet that held still holds.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

__all__ = ["Candidate", "Choice", "Evaluate", "Fate", "Limits", "Search", "Verdict", "highest_rates"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a replica can be, and what is known of it before anything runs."""

    name: str
    dollars_per_hour: float
    """Of one replica."""
    num_gpus: int
    """Of one replica."""
    least_replicas: int = 1
    """Proven: with fewer no run holds."""
    least_reason: str = ""
    """What the bound is of: `prompt and output arithmetic`."""
    guess: int = 1
    """Replicas with which to begin; it decides nothing but the order."""
    wall: str | None = None
    """Why no number of replicas holds; None: nothing is known against it."""
    wall_ratio: float = math.inf
    """How many times a latency of an empty server is over its limit, where that is the wall."""
    wall_kind: str = ""
    """The wall in words that are the same for all choices that have it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """So many replicas of a choice that serve; those that are spare do not."""

    choice: Choice
    num_replicas: int


class Verdict(Protocol):
    """What an evaluation found."""

    @property
    def holds(self) -> bool:
        """Whether the fleet is good enough."""


Evaluate = Callable[[Candidate], Verdict]

Fate = Literal["best", "holds", "walled", "bounded", "beaten", "fails"]
"""
best: the answer; holds: it holds, at a higher price; walled: no number of replicas holds, by arithmetic; bounded: its
least fleet costs no less than the answer, by arithmetic; beaten: evaluated, all that is cheaper than the answer fails;
fails: as many as were allowed fail. All of this is so once the search has run.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a fleet may be."""

    max_gpus: int = 256
    spare: int = 0
    """Replicas more than those that hold: for as many that fail."""


@dataclass
class Search:
    """One search and all that it learned."""

    choices: Sequence[Choice]
    evaluate: Evaluate
    limits: Limits = field(default_factory=Limits)
    best: Candidate | None = None
    verdicts: dict[Candidate, Verdict] = field(default_factory=dict)
    """Of all that were evaluated, in order."""

    # What fleets cost.

    def bought(self, candidate: Candidate) -> int:
        """Replicas to pay for."""
        return candidate.num_replicas + self.limits.spare

    def dollars_per_hour(self, candidate: Candidate) -> float:
        """What the fleet costs."""
        return self.bought(candidate) * candidate.choice.dollars_per_hour

    def price(self, candidate: Candidate) -> float:
        """The same to compare by: rounded, so that equal sums are equal."""
        return round(self.dollars_per_hour(candidate), 6)

    def num_gpus(self, candidate: Candidate) -> int:
        """What it is made of."""
        return self.bought(candidate) * candidate.choice.num_gpus

    def rank(self, candidate: Candidate) -> tuple[float, int, str]:
        """The smaller the better: the price, then GPUs, then the name."""
        return self.price(candidate), self.num_gpus(candidate), candidate.choice.name

    def most_replicas(self, choice: Choice) -> int:
        """As many as the limits allow; 0: not even one."""
        return max(0, self.limits.max_gpus // choice.num_gpus - self.limits.spare)

    def most_cheaper(self, choice: Choice, than: Candidate | None) -> int:
        """The largest fleet of a choice that is better than another; 0: none is."""
        most = self.most_replicas(choice)
        if than is None:
            return most
        if choice.dollars_per_hour > 0:
            most = min(most, math.ceil(self.dollars_per_hour(than) / choice.dollars_per_hour) + 1)
        while most > 0 and self.rank(Candidate(choice, most)) >= self.rank(than):
            most -= 1
        return most

    # Searching.

    def run(self) -> Candidate | None:
        """The cheapest fleet that holds; None where none does."""
        for choice in sorted(self._possible, key=lambda choice: self.rank(Candidate(choice, _first(choice)))):
            most = self.most_cheaper(choice, self.best)
            if choice.least_replicas <= most:
                self._try(choice, most)
        return self.best

    @cached_property
    def _possible(self) -> list[Choice]:
        return [choice for choice in self.choices if choice.wall is None]

    def holds(self, candidate: Candidate) -> bool:
        """Ask, once."""
        if candidate not in self.verdicts:
            self.verdicts[candidate] = self.evaluate(candidate)
        return self.verdicts[candidate].holds

    def _try(self, choice: Choice, most: int) -> None:
        """Find the least replicas up to `most` that hold, if any do; they are the best then."""
        fails, number = choice.least_replicas - 1, min(_first(choice), most)
        step = 1
        while not self.holds(Candidate(choice, number)):
            if number == most:
                return
            fails = number
            # A guess that failed may be little too small where nothing is known of the price; else all or nothing.
            number = most if self.best is not None else min(most, number + step)
            step *= 2
        least = self._least(choice, fails, number)
        self.best = Candidate(choice, least)

    def _least(self, choice: Choice, fails: int, holds: int) -> int:
        """The least number that holds: first near the one that does, as guesses are good, then by halves."""
        step = 1
        while holds - fails > 1:
            number = max(holds - step, (fails + holds) // 2)
            if self.holds(Candidate(choice, number)):
                holds, step = number, 2 * step
            else:
                fails = number
        return holds

    # What it learned.

    def least_open(self, choice: Choice) -> int:
        """The least number of replicas that may hold, as far as is known."""
        return max(choice.least_replicas, self.most_failing(choice) + 1)

    def most_failing(self, choice: Choice) -> int:
        """The most replicas that were seen to fail; 0: none were."""
        return max((each.num_replicas for each, verdict in self._of(choice) if not verdict.holds), default=0)

    def least_holding(self, choice: Choice) -> int | None:
        """The least number of replicas that was seen to hold."""
        return min((each.num_replicas for each, verdict in self._of(choice) if verdict.holds), default=None)

    def holding(self, choices: Sequence[Choice]) -> list[Candidate]:
        """Fleets of these choices that were seen to hold."""
        return [each for each, verdict in self.verdicts.items() if verdict.holds and each.choice in choices]

    def _of(self, choice: Choice) -> list[tuple[Candidate, Verdict]]:
        return [(each, verdict) for each, verdict in self.verdicts.items() if each.choice == choice]

    def fate(self, choice: Choice) -> Fate:
        """What became of a choice."""
        if self.best is not None and self.best.choice == choice:
            return "best"
        if choice.wall is not None:
            return "walled"
        if choice.least_replicas > self.most_replicas(choice):
            return "bounded"
        if self.least_holding(choice) is not None:
            return "holds"
        if not self._of(choice):
            return "bounded"
        return "beaten" if self.least_open(choice) <= self.most_replicas(choice) else "fails"

    def next_best(
        self, num_wanted: int, most_evaluations: int, among: Sequence[Choice] | None = None
    ) -> list[Candidate]:
        """Cheap fleets of other choices than the best one, in order of price; fewer if evaluations run out.

        `among`: of these choices only.

        They are looked for from the guesses on, the cheapest first: a fleet is the least of its choice that holds, but
        another choice may have one that is cheaper than it looks.
        """
        budget = len(self.verdicts) + most_evaluations
        found: list[Candidate] = []
        possible = [choice for choice in self._possible if among is None or choice in among]
        others = [choice for choice in possible if self.best is None or choice != self.best.choice]
        queue = [(self.rank(each), nth, each) for nth, choice in enumerate(others) for each in self._begin(choice)]
        heapq.heapify(queue)
        while queue and len(found) < num_wanted:
            _, nth, candidate = heapq.heappop(queue)
            if candidate not in self.verdicts and len(self.verdicts) >= budget:
                break
            if self.holds(candidate):
                found.append(self._lowered(candidate, budget))
            else:
                for following in self._begin(candidate.choice):
                    heapq.heappush(queue, (self.rank(following), nth, following))
        return sorted(found, key=self.rank)

    def _begin(self, choice: Choice) -> list[Candidate]:
        """Where to look for the least fleet of a choice that holds; none: all that are allowed fail."""
        number = self.least_holding(choice) or max(_first(choice), self.least_open(choice))
        number = min(number, max(self.most_replicas(choice), self.least_open(choice)))
        return [Candidate(choice, number)] if number <= self.most_replicas(choice) else []

    def _lowered(self, candidate: Candidate, budget: int) -> Candidate:
        """The same choice with as few replicas as still hold."""
        while candidate.num_replicas > self.least_open(candidate.choice):
            less = Candidate(candidate.choice, candidate.num_replicas - 1)
            if (less not in self.verdicts and len(self.verdicts) >= budget) or not self.holds(less):
                break
            candidate = less
        return candidate

    def nearest_cheaper(self) -> Candidate | None:
        """Of the fleets that cost less than the best one, and that a run has shown to fail, the dearest."""
        if self.best is None:
            return None
        less = self.price(self.best)
        failed = [each for each, verdict in self.verdicts.items() if not verdict.holds and self.price(each) < less]
        return max(failed, key=self.rank, default=None)

    def dearest_below_best(self) -> Candidate | None:
        """Of all fleets that cost less than the best one, whether they were evaluated or not, the dearest."""
        assert self.best is not None
        less = self.price(self.best)
        fleets = [
            Candidate(choice, number)
            for choice in self._possible
            for number in range(self.most_cheaper(choice, self.best), 0, -1)[:2]
            if self.price(Candidate(choice, number)) < less
        ]
        return max(fleets, key=self.rank, default=None)


def _first(choice: Choice) -> int:
    """Replicas with which to begin."""
    return max(choice.guess, choice.least_replicas)


Judge = Callable[[Mapping[int, float]], Mapping[int, bool]]
"""For each seed, whether a run at this rate holds: all of them are asked at once, so that they run side by side."""

_STRIDE = 1.4
_LEAST_SHARE = 0.02


def highest_rates(judge: Judge, seeds: Sequence[int], start: float, tolerance: float) -> dict[int, tuple[float, float]]:
    """For each seed (a rate that holds, a rate that does not), at most `tolerance` of the latter apart.

    From `start` up or down in strides, then by halves of the ratio. (0, rate): not even a fiftieth of `start` holds.
    """
    brackets = dict.fromkeys(seeds, (0.0, math.inf))
    while True:
        asked = {seed: rate for seed, bracket in brackets.items() if (rate := _next_rate(bracket, start, tolerance))}
        if not asked:
            return brackets
        verdicts = judge(asked)
        for seed, rate in asked.items():
            low, high = brackets[seed]
            brackets[seed] = (rate, high) if verdicts[seed] else (low, rate)


def _next_rate(bracket: tuple[float, float], start: float, tolerance: float) -> float | None:
    low, high = bracket
    if math.isinf(high):
        return low * _STRIDE or start
    if not low:
        return high / _STRIDE if high > _LEAST_SHARE * start else None
    return math.sqrt(low * high) if high - low > tolerance * high else None
