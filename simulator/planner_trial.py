"""One simulation of a plan: a fleet, a seed's traffic, and the few numbers that a verdict needs.

A `Trial` can be sent to another process or machine; `answer_to` answers there, and raises nothing.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.confidence import backlog_share, growth_share
from simulator.deployment import Deployment, deploy
from simulator.engine import simulate_on, workload_of
from simulator.fleet import simulate_fleet
from simulator.fleet_options import FleetOptions, fleet_of
from simulator.metrics import arrival_after, inter_token_latencies, rounded, since, weighted_percentiles
from simulator.mistakes import MISTAKES
from simulator.result import Result
from simulator.scenario import Scenario
from simulator.slo import Limit, Slo
from simulator.step_times import step_times_sources
from simulator.study_point import Point, read_once, why_another
from simulator.table import Columns

__all__ = ["Faster", "Trial", "answer", "answer_to", "result_of"]

Floats = npt.NDArray[np.float64]
_FORM = 3
"""Of an outcome: another one makes earlier outcomes another trial's."""


@dataclass(frozen=True, slots=True)
class Faster:
    """A GPU that does not exist: with so many times the arithmetic, or the memory bandwidth."""

    flops: float = 1.0
    bandwidth: float = 1.0

    def applied(self, deployment: Deployment) -> Deployment:
        """The same server on it; its memory, and so its pool, is the same."""
        if self == Faster() or deployment.gpu is None:
            return deployment
        gpu = deployment.gpu
        return replace(
            deployment,
            gpu=replace(
                gpu,
                bf16_flops_per_s=gpu.bf16_flops_per_s * self.flops,
                bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * self.bandwidth,
            ),
        )


@dataclass(frozen=True)
class Trial:
    """Equal replicas and their traffic."""

    scenario: Scenario
    """Of one replica, with a seed."""
    num_replicas: int
    router: str | None
    slo: Slo
    warm_up: float = 0.0
    """Share of the requests, the first ones, that is not measured."""
    faster: Faster = field(default_factory=Faster)
    """Of a single replica only."""

    @cached_property
    def fleet(self) -> FleetOptions:
        """As `kvplan simulate` has it; a single server has no router."""
        return FleetOptions(self.num_replicas, router=self.router if self.num_replicas > 1 else None)

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the outcome. Raises ScenarioError where a file cannot be read."""
        identity = {
            "point": Point(self.scenario, self.fleet).key,
            "slo": [[limit.text for limit in (*self.slo.limits, *self.slo.each)], self.slo.attainment],
            "warm_up": self.warm_up,
            "faster": [self.faster.flops, self.faster.bandwidth],
            "form": _FORM,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def answer_to(key: str, trial: Trial) -> dict[str, Any]:
    """The same as `answer` in a worker, if there this is the trial of that key; else `status` is "failed"."""
    why = why_another(key, lambda: replace(trial).key)
    return answer(trial) if why is None else {"status": "failed", "reason": " ".join(why.split())}


def answer(trial: Trial) -> dict[str, Any]:
    """What became of a trial, in plain JSON values, the same for equal trials.

    `status` ("finished", "refused": it cannot run, "failed": it broke down) and `reason`. Of a run that finished:
    `limits` (a limit's text to the seconds that were measured; None: nobody to measure), `attainment`, `growth` and
    `backlog` (see `confidence`), `requests` (how many arrived, finished, were rejected or did not finish),
    `rejected_reasons` and `hit_rate` (of prompt tokens).
    """
    try:
        return {"status": "finished", "reason": None, **rounded(_measured(trial, result_of(trial)))}
    except MISTAKES as error:
        return {"status": "refused", "reason": " ".join(str(error).split())}
    except Exception as error:  # a plan can go on without this fleet
        return {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split())}


def result_of(trial: Trial) -> Result:
    """The whole run, with its tables. Raises ValueError with one line for a person."""
    trace = workload_of(trial.scenario, read_once)
    fleet = fleet_of(trial.scenario, trial.fleet)
    if fleet is not None:
        return simulate_fleet(*fleet, trace=trace)
    return simulate_on(trial.faster.applied(deploy(trial.scenario)), trace)


def _measured(trial: Trial, result: Result) -> dict[str, Any]:
    requests, summary = result.tables["requests"], result.summary
    arrivals_s = np.asarray(requests["arrival_s"], dtype=np.float64)
    from_s = arrival_after(requests, int(len(arrivals_s) * trial.warm_up))
    times = _Times.of(requests, from_s)
    gaps = inter_token_latencies(since(result.tables["steps"], "start_s", from_s), result.tables["token_gaps"])
    finish_s = np.asarray(requests["finish_s"], dtype=np.float64)
    is_measured = (arrivals_s >= from_s) & ~np.isnan(finish_s)
    return {
        "limits": {limit.text: times.statistic(limit, gaps) for limit in trial.slo.limits},
        "attainment": times.attainment(trial.slo.each),
        "growth": growth_share(arrivals_s[is_measured], finish_s[is_measured]),
        "backlog": backlog_share(arrivals_s, np.asarray(requests["first_token_s"], dtype=np.float64)),
        "requests": {name: summary["requests"][name] for name in ("arrived", "finished", "rejected", "unfinished")},
        "rejected_reasons": summary["requests"]["rejected_reasons"],
        "hit_rate": summary["prefix_cache_hit_rate"],
        "step_times": step_times_sources(result.to_json()),
    }


@dataclass(frozen=True)
class _Times:
    """Latencies of the requests that are measured, [requests] each; NaN where there is none."""

    ttft: Floats
    tpot: Floats
    e2e: Floats

    @classmethod
    def of(cls, requests: Columns, from_s: float) -> "_Times":
        columns = ("arrival_s", "first_token_s", "finish_s", "output_tokens")
        arrival, first, finish, outputs = (np.asarray(requests[name], dtype=np.float64) for name in columns)
        kept = arrival >= from_s
        with np.errstate(invalid="ignore", divide="ignore"):
            tpot = np.where(outputs >= 2, (finish - first) / (outputs - 1), np.nan)
        return cls((first - arrival)[kept], tpot[kept], (finish - arrival)[kept])

    def _values(self, measure: str) -> Floats:
        values: Floats = getattr(self, measure)
        return values[~np.isnan(values)]

    def statistic(self, limit: Limit, gaps: tuple[Floats, Floats]) -> float | None:
        """What the limit is on, in seconds."""
        if limit.measure == "itl":
            gaps_s, counts = gaps
            if not len(gaps_s):
                return None
            if limit.share is None:
                return float(np.average(gaps_s, weights=counts))
            return float(weighted_percentiles(gaps_s, counts, [100 * limit.share])[0])
        values = self._values(limit.measure)
        if not len(values):
            return None
        return float(values.mean() if limit.share is None else np.quantile(values, limit.share))

    def attainment(self, each: tuple[Limit, ...]) -> float | None:
        """Share of the requests that meet every one of these limits; a TPOT that does not exist is met."""
        if not each or not len(self.ttft):
            return None
        is_met = ~np.isnan(self.e2e)
        for limit in each:
            values: Floats = getattr(self, limit.measure)
            is_met &= ~(values > limit.limit_s)
        return float(is_met.mean())
