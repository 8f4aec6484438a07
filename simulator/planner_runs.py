"""Evaluate fleets by simulation: a run for every seed, side by side; what ran once is kept by its question's hash."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any

from simulator.confidence import Interval, mean_interval
from simulator.executors import Executors, LocalProcesses, ThisProcess
from simulator.planner import Candidate
from simulator.planner_traffic import PlanTraffic
from simulator.planner_trial import Faster, Trial, answer_to
from simulator.scenario import Scenario, ScenarioError
from simulator.slo import Limit, Slo
from simulator.study_store import PointStore

__all__ = ["Finding", "FleetEvaluator", "FleetVerdict", "TrialRunner", "executors_for", "is_growing"]

FIRST_SEEDS = 2
"""Of a fleet: if the same limit is broken with each of them, it fails, and the others are spared."""
GROWING = 0.02
"""Share of the arrivals that a fleet may fall behind by; more, and surely more than nothing, is a queue that grows."""
SURELY_GROWING = 0.05
"""In one run."""
BEHIND = 0.02
"""The backlog at the end of a trace, as a share of its requests, from which a fleet has fallen behind it."""


# Running.


def executors_for(executors: Executors) -> Executors:
    """The same, or this process instead of a single other one, which would only take time to start."""
    return ThisProcess() if executors == LocalProcesses(1) else executors


@dataclass
class TrialRunner:
    """Runs trials, each once: also if the plan was begun earlier."""

    executor: Executor
    store: PointStore
    on_trial: Callable[[int], None] = lambda num_done: None
    """Is told how many trials have been answered in all."""
    num_simulated: int = 0
    num_kept: int = 0
    """Answered by an earlier, interrupted or equal, plan."""
    _outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def outcomes(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """What became of each, in order. Raises ScenarioError where a run broke down."""
        new = {trial.key: trial for trial in trials if trial.key not in self._outcomes}
        kept, _ = self.store.load(new)
        self.num_kept += len(kept)
        self._outcomes.update(kept)
        self._run({key: trial for key, trial in new.items() if key not in kept})
        return [self._outcomes[trial.key] for trial in trials]

    def _run(self, trials: Mapping[str, Trial]) -> None:
        try:
            running = {self.executor.submit(answer_to, key, trial): key for key, trial in trials.items()}
            while running:
                done, _ = wait_for(running, return_when="FIRST_COMPLETED")
                for future in done:
                    self._keep(running.pop(future), future.result())
        except BrokenExecutor:
            raise ScenarioError(
                "a simulation's process was killed: does it need too much memory? The same command goes on from here"
            ) from None

    def _keep(self, key: str, outcome: dict[str, Any]) -> None:
        if outcome["status"] == "failed":
            raise ScenarioError(f"a simulation broke down: {outcome['reason']}")
        self.store.save(key, outcome)
        self._outcomes[key] = outcome
        self.num_simulated += 1
        self.on_trial(self.num_simulated + self.num_kept)


# Judging.


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit, and what came out over the seeds."""

    name: str
    limit: float
    """Seconds, or for attainment a share."""
    values: tuple[float, ...]
    """Of each run, in the limit's unit."""
    is_share: bool = False
    """Attainment: the more the better."""

    @property
    def interval(self) -> Interval:
        """Of the mean over the runs."""
        return mean_interval(self.values)

    @property
    def ratio(self) -> float:
        """The measure over its limit, of attainment the misses over those allowed: above 1 it is broken."""
        return self._ratio(self.interval.mean)

    @property
    def worst_ratio(self) -> float:
        """The same at the end of the interval that is nearer to breaking it."""
        return self._ratio(self.interval.low if self.is_share else self.interval.high)

    def _ratio(self, value: float) -> float:
        if not self.is_share:
            return value / self.limit
        missed, allowed = max(0.0, 1 - value), 1 - self.limit
        return missed / allowed if allowed > 0 else (math.inf if missed else 0.0)

    @property
    def is_kept(self) -> bool:
        """With the whole interval."""
        return self.worst_ratio <= 1

    @property
    def is_always_broken(self) -> bool:
        """In each of the runs."""
        return all(self._ratio(value) > 1 for value in self.values)

    @property
    def is_close(self) -> bool:
        """Too close to call: the limit lies in the interval, and not every run breaks it."""
        best = self._ratio(self.interval.high if self.is_share else self.interval.low)
        return best <= 1 < self.worst_ratio and not self.is_always_broken


@dataclass(frozen=True)
class FleetVerdict:
    """What the runs of one fleet say."""

    findings: tuple[Finding, ...]
    growth: Interval
    """See `confidence.growth_share`; of traffic that is not steady the backlog."""
    is_growing: bool
    outcomes: tuple[dict[str, Any], ...]
    refusal: str | None = None
    """Why it cannot be judged: it does not start, or turns requests away."""

    @property
    def num_runs(self) -> int:
        """With a seed each."""
        return len(self.outcomes)

    @property
    def holds(self) -> bool:
        """Every limit is kept with the whole interval, all requests are served, and no queue grows."""
        return self.refusal is None and not self.is_growing and all(finding.is_kept for finding in self.findings)

    @property
    def tightest(self) -> Finding | None:
        """The limit that is nearest to breaking, or broken furthest."""
        return max(self.findings, key=lambda finding: finding.ratio, default=None)

    @property
    def ratio(self) -> float:
        """The tightest measure over its limit; infinite where it cannot serve, so that nothing was measured."""
        return math.inf if self.tightest is None else self.tightest.ratio

    @property
    def broken(self) -> list[Finding]:
        """Limits that every run breaks; where there is none, those that are not kept with the whole interval."""
        always = [finding for finding in self.findings if finding.is_always_broken]
        return always or [finding for finding in self.findings if not finding.is_kept]

    @property
    def is_close(self) -> bool:
        """It fails, but only because the interval reaches beyond a limit."""
        return self.refusal is None and not self.is_growing and any(finding.is_close for finding in self.broken)


@dataclass(frozen=True)
class FleetEvaluator:
    """Answers whether fleets hold."""

    runner: TrialRunner
    traffic: PlanTraffic
    slo: Slo
    servers: Mapping[str, Mapping[str, Any]]
    """By a choice's name, the settings of one replica's scenario."""
    router: str | None = None

    def __call__(self, candidate: Candidate) -> FleetVerdict:
        """Run the first seeds; unless they agree that a limit is broken, all others."""
        seeds = self.traffic.seeds
        first = self.judge(candidate, seeds[:FIRST_SEEDS])
        if (
            first.refusal is not None
            or len(seeds) <= FIRST_SEEDS
            or _all_break(first, self.slo, self.traffic.is_steady)
        ):
            return first
        return self.judge(candidate, seeds)

    def trial(self, candidate: Candidate, seed: int) -> Trial:
        """One of its runs."""
        scenario = Scenario(**self.servers[candidate.choice.name], **self.traffic.of(seed))
        return Trial(scenario, candidate.num_replicas, self.router, self.slo, self.traffic.warm_up)

    def judge(self, candidate: Candidate, seeds: Sequence[int]) -> FleetVerdict:
        """The verdict of these seeds."""
        outcomes = self.runner.outcomes([self.trial(candidate, seed) for seed in seeds])
        return verdict_of(outcomes, self.slo, self.traffic.is_steady)

    # One replica alone.

    def alone(self, name: str, rates: Mapping[int, float], **changes: Any) -> dict[int, FleetVerdict]:
        """By seed, one replica at a part of the plan's rate; `changes` are of its settings, or `faster`."""
        faster = changes.pop("faster", Faster())
        trials = {}
        for seed, part in rates.items():
            settings = {**self.servers[name], **self.traffic.of(seed, part), **changes}
            settings.update(self.traffic.fewer(part))
            trials[seed] = Trial(Scenario(**settings), 1, None, self.slo, self.traffic.warm_up, faster)
        outcomes = self.runner.outcomes(list(trials.values()))
        return {
            seed: verdict_of([outcome], self.slo, self.traffic.is_steady)
            for seed, outcome in zip(trials, outcomes, strict=True)
        }


def verdict_of(outcomes: Sequence[Mapping[str, Any]], slo: Slo, is_steady: bool) -> FleetVerdict:
    """What runs with different seeds say together."""
    refusal = next((why for outcome in outcomes if (why := _refusal(outcome)) is not None), None)
    if refusal is not None:
        return FleetVerdict((), mean_interval([0.0]), False, tuple(map(dict, outcomes)), refusal)
    findings = [_finding(limit, outcomes) for limit in slo.limits]
    if slo.attainment is not None:
        values = tuple(float(outcome["attainment"] or 0.0) for outcome in outcomes)
        findings.append(Finding("Attainment", slo.attainment, values, is_share=True))
    growth = mean_interval([outcome["growth" if is_steady else "backlog"] for outcome in outcomes])
    return FleetVerdict(
        tuple(finding for finding in findings if finding is not None),
        growth,
        is_growing(growth, len(outcomes), is_steady=is_steady),
        tuple(map(dict, outcomes)),
    )


def _refusal(outcome: Mapping[str, Any]) -> str | None:
    if outcome["status"] != "finished":
        return str(outcome["reason"])
    requests = outcome["requests"]
    if requests["rejected"]:
        reason = next(iter(outcome["rejected_reasons"]), "unknown")
        return f"{requests['rejected']:,} of {requests['arrived']:,} requests are turned away: {reason}"
    return None


def _finding(limit: Limit, outcomes: Sequence[Mapping[str, Any]]) -> Finding | None:
    """None: nobody has such a measure."""
    values = tuple(outcome["limits"][limit.text] for outcome in outcomes)
    return None if None in values else Finding(limit.name, limit.limit_s, values)


def is_growing(growth: Interval, num_runs: int, *, is_steady: bool) -> bool:
    """Whether a queue grows, by the growth (of traffic that is not steady the backlog) of so many runs."""
    if not is_steady:
        return growth.mean > BEHIND
    if num_runs == 1:
        return growth.mean > SURELY_GROWING
    return growth.mean > GROWING and growth.low > 0


def _all_break(verdict: FleetVerdict, slo: Slo, is_steady: bool) -> bool:
    """Whether one and the same limit is broken in each run; or in each the queue surely grows."""
    single = [verdict_of([outcome], slo, is_steady) for outcome in verdict.outcomes]
    broken = [{finding.name for finding in each.findings if not finding.is_kept} for each in single]
    return bool(set.intersection(*broken)) or all(each.is_growing for each in single)
