"""Fit the roofline's efficiencies to measured times: of steps, or of spans of steps in a row.

A step's time is a sum of parts, one for each figure of `Efficiencies` (`Roofline.parts_s`), and each part is in
proportion to its cost, or to the inverse of its share of a peak. So measured times are a linear model of these, whose
coefficients are none of them negative:

    measured seconds of a span ~ sum over figures f of  x_f * (seconds that f costs in the span's steps at x_f = 1)

with x_f = 1 for the efficiencies that the fit starts from. Which limit of a kernel is active changes with x, so this
is solved again and again (Gauss-Newton), by least squares of relative errors in which outliers weigh little (Huber).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from simulator.batch import Batch
from simulator.efficiencies import PRICED, SHARES, Efficiencies
from simulator.roofline import Roofline

__all__ = ["HIGHEST_SHARE", "Fit", "RooflineOf", "Spans", "fit_efficiencies"]

Floats = npt.NDArray[np.float64]
RooflineOf = Callable[[Efficiencies], Roofline]
"""A server's roofline with other efficiencies."""

HIGHEST_SHARE = 1.2
"""Of a peak: more than this is a mistake in the peak, or in the measurement."""
SHARE_SPREAD, COST_SPREAD = 0.3, 5.0
"""By how much figures of other servers differ from the start's, relative to it: fixed costs are rough guesses."""
LEAST_EFFECT = 0.003
"""A figure is fitted if such a difference changes spans, as those before it cannot, by so much of their time (rms)."""
ROOFLINE_ERROR = 0.01
"""How far a roofline is off in any case: a fit that comes closer may do so for a wrong reason."""
PRIOR_ROWS = 30
"""The start weighs as much as one of so many rows, however many there are: their errors are not independent."""
OVERLAPS = (inf, 4.0, 2.5, 2.0, 1.75, 1.5, 1.25, 1.0)
WORTH_A_BEND = 0.9, 0.001
"""Against the first overlap another must leave at most so much of the error, and take away so much of the time."""
HUBER = 1.345
"""Deviations beyond which a row weighs less: 95 % as sharp as least squares where there are no outliers."""
LEAST_DEVIATION = 1e-7
MOST_ROUNDS, CLOSE, TINY = 40, 1e-5, 1e-12
TRUSTED_PART = 0.9
"""Of the rows: their mean error says how good a fit is, whatever the worst ones are."""

# In which order figures are taken: of two that the data cannot tell apart the first is fitted, the other is kept.
_ORDER = (
    "weight_bandwidth", "matmul_compute", "kv_bandwidth", "expert_bandwidth", "expert_compute",
    "prefill_attention_compute", "scan_compute", "link_bandwidth", "step_s", "request_layer_s",
    "decode_attention_compute", "layer_s", "expert_layer_s", "rounding_layer_s", "all_reduce_s",
)  # fmt: skip
_FIELDS = [PRICED.index(name) for name in _ORDER]


@dataclass(frozen=True, eq=False)
class Spans:
    """Measured times, each of which steps in a row took."""

    batches: Sequence[Batch]
    """One step each."""
    begins: Floats
    """[spans] Where each begins: 2.25 is a quarter into the third step."""
    ends: Floats
    """[spans]"""
    measured_s: Floats
    """[spans] Positive."""
    kinds: Sequence[str]
    """[spans] What each is, for reports."""

    @classmethod
    def of_steps(cls, batches: Sequence[Batch], measured_s: Sequence[float] | Floats) -> "Spans":
        """Each step is a span."""
        places = np.arange(len(batches), dtype=np.float64)
        kinds = [kind_of(batch) for batch in batches]
        return cls(batches, places, places + 1, np.asarray(measured_s, dtype=np.float64), kinds)

    def sums(self, of_steps: Floats) -> Floats:
        """What the steps have, [steps, n], summed over each span: [spans, n]."""
        up_to = np.vstack([np.zeros(of_steps.shape[1]), np.cumsum(of_steps, axis=0)])
        places = np.arange(len(up_to))
        columns = [np.interp(self.ends, places, of) - np.interp(self.begins, places, of) for of in up_to.T]
        return np.column_stack(columns)


def kind_of(batch: Batch) -> str:
    """What a step computes."""
    if not batch.num_decodes:
        return "prefill only"
    return "mixed" if batch.prefill_chunks else "decode only"


@dataclass(frozen=True, eq=False)
class Fit:
    """What measured times say about a server."""

    efficiencies: Efficiencies
    predicted_s: Floats
    """[spans] With them."""
    kept: dict[str, str]
    """Figures that stayed as they were, and why."""
    error: float
    """Mean relative error of the better nine tenths of the spans."""

    @property
    def doubtful(self) -> list[str]:
        """Shares of a peak that came out above it."""
        return [name for name in SHARES if getattr(self.efficiencies, name) > 1.0 and name not in self.kept]


def fit_efficiencies(
    roofline_of: RooflineOf,
    spans: Spans,
    start: Efficiencies | None = None,
    overlaps: Sequence[float] = OVERLAPS,
    own_error: float = ROOFLINE_ERROR,
) -> Fit:
    """The efficiencies with which a roofline comes closest to measured times.

    `start`: those of figures about which the data say nothing. `overlaps`: values of `matmul_overlap` to choose from;
    another than the start's (the first, where it is none of them) is taken if it is plainly better. `own_error`: of
    the roofline; the larger, the more the start counts.
    """
    start = start or Efficiencies()
    fits, x = [], np.ones(len(PRICED))
    for overlap in sorted(overlaps, key=lambda overlap: overlap != start.matmul_overlap):
        fit, x = _Problem(roofline_of, spans, replace(start, matmul_overlap=overlap), own_error).solve(x)
        fits.append(fit)
    simplest, best = fits[0], min(fits, key=lambda fit: fit.error)
    part, step = WORTH_A_BEND
    return best if best.error < min(part * simplest.error, simplest.error - step) else simplest


class _Problem:
    """One fit with one shape of the roofline. `x`: the figures relative to the start's, [figures] in PRICED's order."""

    def __init__(self, roofline_of: RooflineOf, spans: Spans, start: Efficiencies, own_error: float) -> None:
        self._roofline_of = roofline_of
        self._spans = spans
        self._start = start
        self._own_error = own_error
        self._start_values = np.array([getattr(start, name) for name in PRICED])
        self._is_share = np.array([name in SHARES for name in PRICED])
        self._least_x = np.where(self._is_share, self._start_values / HIGHEST_SHARE, 0.0)
        self._spread = np.where(self._is_share, SHARE_SPREAD, COST_SPREAD)

    def solve(self, x: Floats) -> tuple[Fit, Floats]:
        """Round by round from `x` until nothing moves; the best of them, in case two limits take turns; and its x."""
        best_x, best_error = x, inf
        for num_rounds in range(MOST_ROUNDS):
            costs = self._costs(x)
            errors = costs @ x - 1
            if (error := _trusted_mean(np.abs(errors))) < best_error:
                best_x, best_error = x, error
            found = self._step(costs, x, errors)
            if np.allclose(found, x, rtol=CLOSE, atol=CLOSE):
                break
            x = found if num_rounds < MOST_ROUNDS // 2 else (x + found) / 2
        costs = self._costs(best_x)
        kept = self._fitted(costs)[1]
        fit = Fit(
            efficiencies=self._efficiencies(best_x),
            predicted_s=costs @ best_x * self._spans.measured_s,
            kept={name: why for name, why in kept.items() if best_x[PRICED.index(name)] == 1},
            error=best_error,
        )
        return fit, best_x

    def _costs(self, x: Floats) -> Floats:
        """What each figure costs in each span for each unit of x, as a part of the measured time: [spans, figures]."""
        priced = self._efficiencies(np.where(self._is_share, x, 1.0))  # a cost has its column even where it is zero
        roofline = self._roofline_of(priced)
        parts_s = np.array([tuple(roofline.parts_s(batch).values()) for batch in self._spans.batches])
        per_unit_s = parts_s / np.where(self._is_share, x, 1.0)
        return self._spans.sums(per_unit_s) / self._spans.measured_s[:, None]

    def _step(self, costs: Floats, x: Floats, errors: Floats) -> Floats:
        """The best x as long as every limit stays which it is; figures that are not fitted stay, too."""
        from scipy.optimize import nnls

        fitted, _ = self._fitted(costs)
        deviation = max(1.4826 * float(np.median(np.abs(errors))), LEAST_DEVIATION)  # which outliers do not move
        roots = np.sqrt(np.minimum(1.0, HUBER * deviation / np.maximum(np.abs(errors), LEAST_DEVIATION)) / len(errors))
        kept = np.setdiff1d(np.arange(len(x)), fitted)
        least = self._least_x[fitted]
        left = 1 - costs[:, kept] @ x[kept] - costs[:, fitted] @ least
        prior = max(deviation, self._own_error) / np.sqrt(PRIOR_ROWS) / self._spread[fitted]
        rows = np.vstack([costs[:, fitted] * roots[:, None], np.diag(prior)])
        beyond, _ = nnls(rows, np.concatenate([left * roots, prior * (1 - least)]))
        found = x.copy()
        found[fitted] = least + beyond
        return found

    def _fitted(self, costs: Floats) -> tuple[npt.NDArray[np.intp], dict[str, str]]:
        """Figures that the spans tell apart, given what each costs in them, and why the others stay.

        Gram-Schmidt: what is left of a column once those before it are taken out.
        """
        effects = costs * self._spread
        fitted: list[int] = []
        kept: dict[str, str] = {}
        directions = np.empty((len(effects), 0))
        for field in _FIELDS:
            column = effects[:, field] / np.sqrt(len(effects))
            own = column - directions @ (directions.T @ column)
            own -= directions @ (directions.T @ own)  # once more: rounding
            if (size := float(np.linalg.norm(own))) >= LEAST_EFFECT:
                fitted.append(field)
                directions = np.column_stack([directions, own / size])
            elif np.linalg.norm(column) < LEAST_EFFECT:
                kept[PRICED[field]] = "takes hardly any of the measured time"
            else:
                kept[PRICED[field]] = "cannot be told from the others"
        return np.array(fitted, dtype=np.intp), kept

    def _efficiencies(self, x: Floats) -> Efficiencies:
        values = self._start_values * np.where(self._is_share, 1 / np.maximum(x, TINY), x)
        return replace(self._start, **dict(zip(PRICED, map(float, values), strict=True)))


def _trusted_mean(errors: Floats) -> float:
    num_trusted = max(1, round(TRUSTED_PART * len(errors)))
    return float(np.sort(errors)[:num_trusted].mean())
