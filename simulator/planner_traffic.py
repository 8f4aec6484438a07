"""The traffic of a plan: for each seed the same arrivals and lengths, whatever serves them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from simulator.engine import workload_of
from simulator.scenario import Scenario, ScenarioError
from simulator.slo import Slo
from simulator.study_point import read_once
from workloads import TraceRequest, conversation_demo

__all__ = ["PlanTraffic", "plan_traffic"]

SETTINGS = ("trace", "request_rate", "input_len", "output_len", "num_requests", "rate_scale", "spread_ticks", "seed")
"""Of a scenario, those that say what arrives."""
DEFAULT_SEEDS = 6
WARM_UP = 0.2
"""Of the arrivals of steady traffic: a fleet starts empty, which nobody is promised."""
_REQUESTS_BEYOND = 3
"""Of one run, beyond the percentile that is asked for."""
_LIVES = 7
"""The arrivals of steady traffic last so many times as long as the SLO lets one request."""
_FEWEST, _MOST = 400, 6000
_QUEUE_S, _TOKEN_S = 10.0, 0.1
"""How long a request is taken to wait, and for each token, where no limit says."""
_SOME_MODEL = "llama-3.1-8b"
"""Traffic is the same for all."""


@dataclass(frozen=True)
class PlanTraffic:
    """What arrives."""

    settings: Mapping[str, Any]
    """Of a scenario; without a seed."""
    seeds: tuple[int, ...]
    is_steady: bool
    """Poisson arrivals at one rate, of which runs are samples: the start is left out, and a queue must not grow."""
    demo_rate_per_s: float | None = None
    """The embedded conversations, so many a second."""
    slo: Slo | None = None
    """Where it decides how many requests are enough, as nobody said how many."""

    @property
    def warm_up(self) -> float:
        """Share of the arrivals that is not measured."""
        return WARM_UP if self.is_steady else 0.0

    def of(self, seed: int, rate_factor: float = 1.0) -> dict[str, Any]:
        """Settings of a scenario, for traffic that comes so many times as fast."""
        settings = {**self.settings, "seed": seed}
        if self.demo_rate_per_s is not None:
            settings["rate_scale"] = self.demo_rate_per_s / _natural_rate(seed)
        settings["rate_scale"] = settings.get("rate_scale", 1.0) * rate_factor
        return settings

    def fewer(self, rate_factor: float) -> dict[str, int]:
        """The number of requests that is enough at another rate, where it is not stated."""
        if self.slo is None:
            return {}
        output_len = int(self.settings["output_len"])
        return {"num_requests": _enough_requests(self.rate_per_s * rate_factor, output_len, self.slo)}

    def rows(self, seed: int) -> tuple[list[TraceRequest], int | None]:
        """(all requests, tokens that each prefix id names)."""
        trace = workload_of(Scenario(model=_SOME_MODEL, **self.of(seed)), read_once)
        rows = list(trace)
        if not rows:
            raise ScenarioError(f"{trace.name}: holds no request to plan for")
        return rows, trace.prefix_block_tokens

    @cached_property
    def rate_per_s(self) -> float:
        """Requests a second: of steady traffic as stated, of any other on average, over all seeds."""
        if self.is_steady:
            return float(self.settings["request_rate"]) * float(self.settings.get("rate_scale", 1.0))
        rates = []
        for seed in self.seeds:
            rows, _ = self.rows(seed)
            span_s = rows[-1].arrival_s - rows[0].arrival_s
            rates.append((len(rows) - 1) / span_s if span_s > 0 else math.inf)
        return sum(rates) / len(rates)


@lru_cache(maxsize=64)
def _natural_rate(seed: int) -> float:
    arrivals_s = [row.arrival_s for row in conversation_demo(seed)]
    return (len(arrivals_s) - 1) / (arrivals_s[-1] - arrivals_s[0])


def plan_traffic(scenario: Scenario, slo: Slo, num_seeds: int | None = None) -> PlanTraffic:
    """The traffic that a scenario asks for. Raises ScenarioError with one line for a person.

    `--request-rate` with lengths makes requests up; without lengths and without a trace it is the embedded
    conversations' rate. A trace is what it is: one run says all, unless its ticks are spread.
    """
    stated = {name: getattr(scenario, name) for name in SETTINGS if name in scenario.model_fields_set}
    first = stated.pop("seed", 0)
    has_lengths = scenario.input_len is not None or scenario.output_len is not None
    if scenario.request_rate is not None and scenario.trace is None and not has_lengths:
        del stated["request_rate"]
        seeds = _seeds(first, num_seeds)
        rate = scenario.request_rate * stated.pop("rate_scale", 1.0)
        return PlanTraffic(stated, seeds, is_steady=False, demo_rate_per_s=rate)
    workload_of(scenario, read_once)  # says what is wrong
    if scenario.request_rate is None:
        is_random = scenario.trace is None or scenario.spread_ticks
        if num_seeds is not None and num_seeds > 1 and not is_random:
            raise ScenarioError("--seeds: a trace is the same with every seed; --spread-ticks would draw its arrivals")
        return PlanTraffic(stated, _seeds(first, num_seeds) if is_random else (first,), is_steady=False)
    traffic = PlanTraffic(stated, _seeds(first, num_seeds), is_steady=True)
    if scenario.num_requests is not None:
        return traffic
    traffic = replace(traffic, slo=slo)
    return replace(traffic, settings={**stated, **traffic.fewer(1.0)})


def _seeds(first: int, num_seeds: int | None) -> tuple[int, ...]:
    num = DEFAULT_SEEDS if num_seeds is None else num_seeds
    if num < 2:
        raise ScenarioError(f"--seeds: must be at least 2, for an interval, got {num}")
    return tuple(range(first, first + num))


def _enough_requests(rate_per_s: float, output_len: int, slo: Slo) -> int:
    """Requests of one run: enough beyond the percentile, and for an arrival window of seven requests' lives."""
    longest_s = [limit_s for _, limit_s in slo.shares("e2e")]
    queue_s = min((limit_s for _, limit_s in slo.shares("ttft")), default=_QUEUE_S)
    token_s = min((limit_s for _, limit_s in (*slo.shares("tpot"), *slo.shares("itl"))), default=_TOKEN_S)
    longest_s.append(queue_s + output_len * token_s)
    num = max(_REQUESTS_BEYOND / slo.tail / (1 - WARM_UP), _LIVES * rate_per_s * min(longest_s), _FEWEST)
    return min(_MOST, math.ceil(num / 50) * 50)
