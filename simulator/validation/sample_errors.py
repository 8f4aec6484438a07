"""How far replays of the published sample lie from it: a row for each measurement, and errors of groups of rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from models_configs import find_model
from simulator.validation.silicon_sample import Outcome, Point, Row, is_fitted_on

__all__ = ["GroupErrors", "errors_of", "group_errors", "sample_table"]

DENSE = "dense models"
ALL = "all rows"


class GroupErrors(NamedTuple):
    """Errors of some rows, as parts of what was measured."""

    name: str
    num_rows: int
    median: float
    """Of sizes."""
    p90: float
    """Of sizes."""
    bias: float
    """Median of the errors themselves: what is predicted too long is above 0."""


def sample_table(points: Mapping[Point, Sequence[Row]], outcomes: Mapping[Point, Outcome]) -> pd.DataFrame:
    """A row for each measurement of the points that have an outcome: its point, measured, predicted, error."""
    rows = [
        {
            "id": row.id,
            "weights": row.weights or "bf16",
            "vllm_version": row.version,
            **point._asdict(),
            "has_experts": find_model(point.model).has_experts,
            "is_fitted_on": is_fitted_on(row),
            "step_times": outcome.source,
            "measured_ttft_s": row.ttft_s,
            "predicted_ttft_s": outcome.ttft_s,
            "measured_tpot_s": row.tpot_s,
            "predicted_tpot_s": outcome.tpot_s,
        }
        for point, outcome in outcomes.items()
        for row in points[point]
    ]
    table = pd.DataFrame(rows)
    for measure in ("ttft", "tpot"):
        table[f"{measure}_error"] = table[f"predicted_{measure}_s"] / table[f"measured_{measure}_s"] - 1
    return table


def errors_of(name: str, errors: npt.NDArray[np.float64]) -> GroupErrors:
    """The errors of one group, which has a row at least."""
    median, p90 = np.quantile(np.abs(errors), (0.5, 0.9))
    return GroupErrors(name, len(errors), float(median), float(p90), float(np.median(errors)))


def group_errors(table: pd.DataFrame, measure: str) -> list[GroupErrors]:
    """Errors of a measure ("ttft", "tpot"): of all rows, of dense models, then of each model, format and GPU."""
    column = f"{measure}_error"
    groups = [errors_of(ALL, table[column].to_numpy())]
    dense = table[~table["has_experts"]]
    if len(dense):
        groups.append(errors_of(DENSE, dense[column].to_numpy()))
    by_kind = table.groupby(["model", "weights", "gpu"], sort=True)
    return [*groups, *(errors_of(", ".join(map(str, kind)), rows[column].to_numpy()) for kind, rows in by_kind)]
