"""Service level objectives: what `--slo ttft.p99=2s` and `--slo-attainment 0.99` ask of a run's latencies.

```
ttft.p99=2s        the 99th percentile of the requests' times to first token is at most 2 seconds
tpot.mean=40ms     mean and max are asked for in the same way
ttft=2s tpot=40ms  limits for each request; --slo-attainment says which share of requests meets all of them
```
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from simulator.scenario import ScenarioError
from simulator.summary_table import format_seconds

__all__ = ["DEFAULT_ATTAINMENT", "MEASURES", "Limit", "Slo", "parse_slo"]

MEASURES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
}
"""What can be limited, and what it is called in words."""
PER_REQUEST = ("ttft", "tpot", "e2e")
"""Those of which each request has one."""
DEFAULT_ATTAINMENT = 0.99
EXAMPLE = "ttft.p99=2s"
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "m": 60.0}
_LIMIT = re.compile(r"([a-z0-9]+)(?:\.([a-z0-9.]+))?\s*(?:<=|=|<)\s*(.+)")
_TIME = re.compile(r"(\d+(?:\.\d*)?(?:e-?\d+)?|\.\d+)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class Limit:
    """One measure's most seconds."""

    measure: str
    """Of `MEASURES`."""
    statistic: str | None
    """"mean", "max" or a percentile such as "p99"; None: of each request, see `Slo.attainment`."""
    limit_s: float

    @property
    def share(self) -> float | None:
        """Of the requests (the gaps, for itl), which must keep it at least; None of a mean."""
        if self.statistic is None or self.statistic == "mean":
            return None
        return 1.0 if self.statistic == "max" else float(self.statistic[1:]) / 100

    @property
    def name(self) -> str:
        """`TTFT p99`."""
        return self.measure.upper() + ("" if self.statistic is None else f" {self.statistic}")

    @property
    def text(self) -> str:
        """As a command line has it."""
        statistic = "" if self.statistic is None else f".{self.statistic}"
        return f"{self.measure}{statistic}={self.limit_s:g}s"


@dataclass(frozen=True, slots=True)
class Slo:
    """All limits, of which a run keeps every one."""

    limits: tuple[Limit, ...]
    """Of means and percentiles."""
    each: tuple[Limit, ...] = ()
    """Of each request."""
    attainment: float | None = None
    """Share of the requests that meet all limits in `each`; None where there are none."""

    @property
    def tail(self) -> float:
        """The smallest share that may miss a limit: how far into the tail to look; 1 where no share is named."""
        shares = [1 - limit.share for limit in self.limits if limit.share is not None and limit.share < 1]
        if self.attainment is not None and self.attainment < 1:
            shares.append(1 - self.attainment)
        return min(shares, default=1.0)

    @property
    def text(self) -> str:
        """In words: `TTFT p99 at most 2 s, TPOT p99 at most 40 ms`."""
        parts = [f"{limit.name} at most {format_seconds(limit.limit_s)}" for limit in self.limits]
        if self.each:
            within = " and ".join(f"{limit.name} of at most {format_seconds(limit.limit_s)}" for limit in self.each)
            parts.append(f"{100 * (self.attainment or 0):g}% of requests with {within}")
        return ", ".join(parts)

    def shares(self, measure: str) -> list[tuple[float, float]]:
        """(share of the requests, most seconds) that the SLO asks of a measure: so many keep it, at least."""
        asked = [(limit.share, limit.limit_s) for limit in self.limits if limit.measure == measure and limit.share]
        return asked + [(self.attainment or 0.0, limit.limit_s) for limit in self.each if limit.measure == measure]


def parse_slo(texts: Sequence[str], attainment: float | None = None) -> Slo:
    """The SLO of several `--slo` values and `--slo-attainment`. Raises ScenarioError with one line for a person."""
    parsed = [_parse_limit(part.strip()) for text in texts for part in text.split(",")]
    if not parsed:
        raise ScenarioError(f"--slo: is needed to tell which fleet is good enough: --slo {EXAMPLE}")
    named: set[str] = set()
    for limit in parsed:
        if limit.name in named:
            raise ScenarioError(f"--slo: {limit.text.partition('=')[0]} is limited twice")
        named.add(limit.name)
    each = tuple(limit for limit in parsed if limit.statistic is None)
    if attainment is not None and not each:
        raise ScenarioError("--slo-attainment: goes with limits for each request: --slo ttft=2s, without a percentile")
    if attainment is not None and not 0 < attainment <= 1:
        raise ScenarioError(f"--slo-attainment: must be a share above 0 and up to 1, got {attainment:g}")
    return Slo(
        limits=tuple(limit for limit in parsed if limit.statistic is not None),
        each=each,
        attainment=(DEFAULT_ATTAINMENT if attainment is None else attainment) if each else None,
    )


def _parse_limit(text: str) -> Limit:
    match = _LIMIT.fullmatch(text.lower())
    if match is None:
        raise ScenarioError(f"--slo: must be a measure and its limit such as {EXAMPLE}, got {text!r}")
    measure, statistic, value = match.groups()
    if measure not in MEASURES:
        near = get_close_matches(measure, MEASURES, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(MEASURES)}"
        raise ScenarioError(f"--slo: unknown measure {measure!r}{hint}")
    if statistic is None and measure not in PER_REQUEST:
        raise ScenarioError(f"--slo: {measure} is of many gaps, not one for each request: say {measure}.p99={value}")
    return Limit(measure, None if statistic is None else _parse_statistic(statistic, text), _parse_time(value, text))


def _parse_statistic(statistic: str, text: str) -> str:
    if statistic in {"mean", "max"}:
        return statistic
    number = statistic.removeprefix("p")
    if statistic != number and re.fullmatch(r"\d{1,2}(\.\d{1,3})?", number) and 0 < float(number) < 100:
        return f"p{float(number):g}"
    near = f"; did you mean p{number}?" if re.fullmatch(r"\d{1,2}", statistic) else ""
    raise ScenarioError(f"--slo: must be mean, max or a percentile such as p99, got {statistic!r} in {text!r}{near}")


def _parse_time(value: str, text: str) -> float:
    match = _TIME.fullmatch(value.strip())
    if match is None or match[2] not in _UNITS:
        raise ScenarioError(f"--slo: must end in a time such as 2s or 40ms, got {value!r} in {text!r}")
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds < math.inf:
        raise ScenarioError(f"--slo: must be more than 0 seconds, got {value!r} in {text!r}")
    return seconds
