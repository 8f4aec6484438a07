"""How sure a figure is: intervals over seeds, and whether a queue grows.

Runs with different seeds are independent, whatever happens within each: Student's t holds for their means, and no
assumption on the waiting times of neighbouring requests is needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Interval", "backlog_share", "growth_share", "mean_interval"]

Floats = npt.NDArray[np.float64]

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t that a two-sided 95% interval needs, by degrees of freedom from 1."""
_Z_95 = 1.960


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its two-sided 95% interval; low and high are the mean where one value is all there is."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of its length."""
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float]) -> Interval:
    """Of independent values, at least one: Student's t. Infinity among them makes all of it infinite."""
    mean = float(np.mean(values))
    if len(values) == 1 or not math.isfinite(mean):
        return Interval(mean, mean, mean)
    degrees = len(values) - 1
    quantile = _T_95[degrees - 1] if degrees <= len(_T_95) else _Z_95
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def growth_share(arrivals_s: Floats, ends_s: Floats) -> float:
    """Which share of the requests cannot be served as they come, [requests] each by arrival and end; about 0: none.

    Where a share g of the arrivals is beyond what is served, who comes a second later waits g / (1 - g) seconds longer:
    the slope, by least squares, of the time that requests are there against their arrival. It is not taken of their
    number, which rises and falls with the arrivals of a seed whoever serves them, and so for all fleets alike.
    """
    if len(arrivals_s) < 3 or np.ptp(arrivals_s) == 0:
        return 0.0
    slope = float(np.polyfit(arrivals_s - arrivals_s.min(), ends_s - arrivals_s, 1)[0])
    return slope / (1 + slope) if slope > -0.5 else -1.0


def backlog_share(arrivals_s: Floats, first_tokens_s: Floats) -> float:
    """Of all requests, the share that came before the last tenth of the time and had no first token at its end.

    The time is that of the arrivals. Whoever comes all at once is no backlog: nothing came after it.
    """
    if not len(arrivals_s):
        return 0.0
    last_s, first_s = float(arrivals_s.max()), float(arrivals_s.min())
    is_old = arrivals_s < last_s - 0.1 * (last_s - first_s)
    return float(np.count_nonzero(is_old & ~(first_tokens_s <= last_s))) / len(arrivals_s)
