"""A whole plan: the search, what comes next, what a replica sustains, what binds, and the runs that show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simulator.confidence import Interval, mean_interval
from simulator.deployment import deploy
from simulator.planner import Candidate, Search, highest_rates
from simulator.planner_options import Server
from simulator.planner_runs import FleetEvaluator, FleetVerdict
from simulator.planner_trial import Faster
from simulator.scenario import Scenario

__all__ = ["FleetPlan", "Relief", "Sustained", "binding", "make_plan", "show_a_cheaper_one"]

NUM_NEXT = 3
MOST_EVALUATIONS = 6
"""For the next best, beyond those that were needed for the answer."""
_RATES_OF_BEST, _RATES_OF_NEXT = (4, 0.08), (2, 0.15)
"""(seeds, how far a rate that holds may be from one that does not) for the answer, and for those next to it."""
_RELIEF_SEEDS = 2
_BEYOND = 1.1
"""What binds shows beyond the highest rate that a replica sustains."""
_HELPS = 0.97
"""Of the tightest measure: a relief that leaves more of it does not help."""
_HITS_MORE = 0.02
"""Share of prompt tokens: with twice the blocks so many more are hit where it is prefixes that they lacked for."""


@dataclass(frozen=True)
class Sustained:
    """The highest rate at which one replica alone keeps the SLO, seed by seed."""

    brackets: Mapping[int, tuple[float, float]]
    """(a rate that holds, one that does not) for each seed, in requests a second."""
    points: tuple[tuple[int, float, FleetVerdict], ...]
    """(seed, requests a second, what came out) of all runs that were needed, by the rate."""

    @property
    def per_s(self) -> Interval:
        """The rates that hold, over the seeds; of one seed from the one that holds to the one that does not."""
        lows = [low for low, _ in self.brackets.values()]
        if len(lows) == 1:
            return Interval(lows[0], *next(iter(self.brackets.values())))
        return mean_interval(lows)

    @property
    def fails_per_s(self) -> float:
        """A rate at which it does not hold, on average over the seeds."""
        return sum(high for _, high in self.brackets.values()) / len(self.brackets)


@dataclass(frozen=True, slots=True)
class Relief:
    """One limit of the hardware or the settings, loosened where a replica gets more than it sustains."""

    what: str
    change: str
    before: float
    """The tightest measure over its limit, as it is; infinite where it cannot serve."""
    after: float
    """The same with the change."""
    hit_rate_gain: float = 0.0
    """Of prompt tokens."""

    @property
    def helps(self) -> bool:
        """Whether it makes a difference worth a word."""
        return self.after < _HELPS * self.before

    @property
    def suffices(self) -> bool:
        """With it every limit is kept on average."""
        return self.after <= 1


@dataclass(frozen=True)
class FleetPlan:
    """What was found."""

    search: Search
    servers: Mapping[str, Server]
    evaluator: FleetEvaluator
    next_best: tuple[Candidate, ...] = ()
    best_of_others: Mapping[str, Candidate | None] = field(default_factory=dict)
    """By model, where several were asked for, the cheapest fleet of each but the best one's; None: none was found."""
    sustained: Mapping[str, Sustained] = field(default_factory=dict)
    """By a choice's name."""
    reliefs: tuple[Relief, ...] = ()
    """Of the best one's replica, the most helpful first."""
    relief_rate_per_s: float = 0.0
    """The rate at which they were tried."""

    @property
    def best(self) -> Candidate | None:
        """The answer; None: no fleet holds."""
        return self.search.best

    def verdict(self, candidate: Candidate) -> FleetVerdict:
        """What its runs said."""
        verdict = self.search.verdicts[candidate]
        assert isinstance(verdict, FleetVerdict)
        return verdict

    @cached_property
    def models(self) -> list[str]:
        """Those that were asked for, in order: alternatives, of which the answer is one."""
        return list(dict.fromkeys(server.model for server in self.servers.values()))

    def is_ruled_out(self, model: str) -> bool:
        """Whether all fleets of a model that the limits allow are known to fail."""
        choices = [choice for choice in self.search.choices if self.servers[choice.name].model == model]
        return all(
            self.search.least_open(choice) > self.search.most_replicas(choice) for choice in choices if not choice.wall
        )

    @property
    def helping(self) -> list[Relief]:
        """Reliefs that make a difference, the most helpful first."""
        return [relief for relief in self.reliefs if relief.helps]

    @property
    def nearest_cheaper(self) -> Candidate | None:
        """The dearest fleet that is cheaper than the best one and was seen to fail."""
        return self.search.nearest_cheaper()

    @property
    def nearest_miss(self) -> Candidate | None:
        """Of all fleets that were simulated and fail, the one whose tightest measure is least beyond its limit."""
        failed = [each for each in self.search.verdicts if not self.verdict(each).holds]
        return min(failed, key=lambda each: (self.verdict(each).ratio, self.search.rank(each)), default=None)

    @property
    def one_less(self) -> Candidate | None:
        """The best fleet with a replica less, if it was simulated."""
        if self.best is None or self.best.num_replicas == 1:
            return None
        less = Candidate(self.best.choice, self.best.num_replicas - 1)
        return less if less in self.search.verdicts else None


def make_plan(search: Search, servers: Mapping[str, Server], evaluator: FleetEvaluator) -> FleetPlan:
    """Search, and look closer at what was found. Raises ScenarioError with one line for a person."""
    best = search.run()
    if best is None:
        return FleetPlan(search, servers, evaluator)
    show_a_cheaper_one(search)
    next_best = tuple(search.next_best(NUM_NEXT, MOST_EVALUATIONS))
    others = _best_of_others(search, servers, best)
    sustained = {best.choice.name: _sustained(evaluator, best, *_RATES_OF_BEST)}
    sustained |= {each.choice.name: _sustained(evaluator, each, *_RATES_OF_NEXT) for each in next_best}
    rate_per_s = _BEYOND * sustained[best.choice.name].fails_per_s
    reliefs = _reliefs(evaluator, servers[best.choice.name], rate_per_s)
    return FleetPlan(search, servers, evaluator, next_best, others, sustained, reliefs, rate_per_s)


def show_a_cheaper_one(search: Search) -> None:
    """Where arithmetic alone has excluded all that is cheaper, a run of the dearest of these shows it, too."""
    if search.best is None or search.nearest_cheaper() is not None:
        return
    dearest = search.dearest_below_best()
    if dearest is not None:
        search.holds(dearest)


def _best_of_others(search: Search, servers: Mapping[str, Server], best: Candidate) -> dict[str, Candidate | None]:
    """The cheapest fleet of each other model that was found to hold, looked for within a few evaluations."""
    found: dict[str, Candidate | None] = {}
    for model in dict.fromkeys(server.model for server in servers.values()):
        if model == servers[best.choice.name].model:
            continue
        own = [choice for choice in search.choices if servers[choice.name].model == model]
        holding = search.holding(own) or search.next_best(1, MOST_EVALUATIONS, own)
        found[model] = min(holding, key=search.rank, default=None)
    return found


def _sustained(evaluator: FleetEvaluator, candidate: Candidate, num_seeds: int, tolerance: float) -> Sustained:
    """By bisection from the rate that each replica of the fleet gets."""
    seeds = evaluator.traffic.seeds[:num_seeds]
    total_per_s = evaluator.traffic.rate_per_s
    points: list[tuple[int, float, FleetVerdict]] = []

    def judge(parts: Mapping[int, float]) -> dict[int, bool]:
        verdicts = evaluator.alone(candidate.choice.name, parts)
        points.extend((seed, parts[seed] * total_per_s, verdict) for seed, verdict in verdicts.items())
        return {seed: verdict.holds for seed, verdict in verdicts.items()}

    brackets = highest_rates(judge, seeds, 1 / candidate.num_replicas, tolerance)
    scaled = {seed: (low * total_per_s, high * total_per_s) for seed, (low, high) in brackets.items()}
    return Sustained(scaled, tuple(sorted(points, key=lambda point: point[:2][::-1])))


# What binds.


def _reliefs(evaluator: FleetEvaluator, server: Server, rate_per_s: float) -> tuple[Relief, ...]:
    """Loosen one thing at a time, under the same traffic, where a replica does not hold any more."""
    part = rate_per_s / evaluator.traffic.rate_per_s
    parts = dict.fromkeys(evaluator.traffic.seeds[:_RELIEF_SEEDS], part)
    deployment = deploy(Scenario(**server.settings))
    limits, num_blocks = deployment.scheduler_settings, deployment.layout.num_blocks
    budget = limits.max_num_batched_tokens
    kept = {"num_gpu_blocks_override": num_blocks, "max_model_len": limits.max_model_len}
    before = _looked_at(list(evaluator.alone(server.name, parts, **kept).values()))
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("compute", "twice the FLOP/s", {"faster": Faster(flops=2.0)}),
        ("memory bandwidth", "twice the bandwidth", {"faster": Faster(bandwidth=2.0)}),
        ("KV memory", "twice the blocks", {"num_gpu_blocks_override": 2 * num_blocks}),
        ("token budget", f"{2 * budget:,} tokens a step instead of {budget:,}", {"max_num_batched_tokens": 2 * budget}),
    ]  # fmt: skip
    if budget // 2 >= limits.max_num_seqs:  # else the budget would have to grow, too: that is a relief of its own
        twice = f"max_num_seqs {2 * limits.max_num_seqs:,} instead of {limits.max_num_seqs:,}"
        changes.append(("max_num_seqs", twice, {"max_num_seqs": 2 * limits.max_num_seqs}))
        half = {"max_num_batched_tokens": budget // 2}
        changes.append(("token budget", f"{budget // 2:,} tokens a step instead of {budget:,}", half))
    reliefs = []
    for what, change, settings in changes:
        after = _looked_at(list(evaluator.alone(server.name, parts, **{**kept, **settings}).values()))
        reliefs.append(Relief(what, change, before[0], after[0], after[1] - before[1]))
    return tuple(sorted(reliefs, key=lambda relief: (relief.after, relief.what, relief.change)))


def _looked_at(verdicts: Sequence[FleetVerdict]) -> tuple[float, float]:
    """(the tightest measure over its limit, the hit rate), means over the runs."""
    hits = [float(outcome.get("hit_rate") or 0.0) for verdict in verdicts for outcome in verdict.outcomes]
    return _mean([verdict.ratio for verdict in verdicts]), _mean(hits)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def binding(plan: FleetPlan) -> str | None:
    """What binds: the hardware or setting whose loosening helps most; None: none of them helps."""
    if not plan.helping:
        return None
    first = plan.helping[0]
    if first.what == "KV memory" and first.hit_rate_gain >= _HITS_MORE:
        return "prefix-cache capacity"
    return first.what
