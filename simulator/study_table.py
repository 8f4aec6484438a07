"""What a study found, as one tidy table: a row for each point, a column for each axis and each measure."""

import csv
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from simulator.binding import Binding, most_common_binding
from simulator.measures import MEASURES, measures_of
from simulator.prices import Price
from simulator.step_times import step_times_sources
from simulator.study_file import Study, StudyPoint
from simulator.study_settings import named, shown
from simulator.table import write_parquet

__all__ = ["SEED", "Row", "StudyTable", "tabulate"]

SEED = "seed"
"""The axis along which points differ by chance alone."""


@dataclass(frozen=True, eq=False)
class Row:
    """One point and what became of it."""

    number: int
    """From 1, in the order of the study."""
    label: str
    settings: Mapping[str, Any]
    """Its values of the axes."""
    key: str
    status: str
    reason: str | None
    measures: Mapping[str, Any] = field(default_factory=dict)
    """By column, see `measures.MEASURES`; empty where it did not finish."""
    binding: Binding | None = None
    """What seems to bind it."""
    meets_slo: bool | None = None
    """None: the study has no SLO, or it did not finish."""
    step_times: tuple[str, ...] = ()
    """Where they are from, where that is neither the roofline nor stated."""

    @property
    def has_finished(self) -> bool:
        """Whether there are measures."""
        return self.status == "finished"

    @property
    def served_all(self) -> bool:
        """Whether it turned nobody away: only such points compare."""
        return self.has_finished and self.measures["finished"] == self.measures["arrived"] > 0


@dataclass(frozen=True)
class StudyTable:
    """All rows, in the order of the study."""

    study: Study
    rows: tuple[Row, ...]
    prices: Mapping[str, Price]
    """Those that were used, by accelerator."""

    @cached_property
    def finished(self) -> tuple[Row, ...]:
        """Points that have measures."""
        return tuple(row for row in self.rows if row.has_finished)

    @cached_property
    def unfinished(self) -> tuple[Row, ...]:
        """Points that were refused or failed."""
        return tuple(row for row in self.rows if not row.has_finished)

    @cached_property
    def comparable(self) -> tuple[Row, ...]:
        """Points that turned nobody away; where there is none, all that finished."""
        return tuple(row for row in self.rows if row.served_all) or self.finished

    @cached_property
    def over_seeds(self) -> "StudyTable":
        """One row for points that differ in nothing but their seed: means, and the SLO met by all of them.

        Where a seed did not finish, there is no mean, but that. A table without seeds is itself.
        """
        if SEED not in self.study.axes:
            return self
        axes = {name: values for name, values in self.study.axes.items() if name != SEED}
        alike: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            alike[tuple(shown(row.settings[name]) for name in axes)].append(row)
        rows = [_mean(each, axes) for each in alike.values()]
        return replace(self, study=replace(self.study, axes=axes), rows=tuple(rows))

    def columns(self) -> dict[str, list[Any]]:
        """Name to values [points]: what varies, what became of it, its measures, its hash."""
        rows = self.rows
        columns: dict[str, list[Any]] = {"point": [row.number for row in rows]}
        columns |= {name: [row.settings[name] for row in rows] for name in self.study.axes}
        columns |= {"status": [row.status for row in rows], "reason": [row.reason for row in rows]}
        if self.study.slo:
            columns["meets_slo"] = [row.meets_slo for row in rows]
        columns["binding"] = [row.binding for row in rows]
        columns |= {each.column: [row.measures.get(each.column) for row in rows] for each in MEASURES}
        columns["key"] = [row.key for row in rows]
        return columns

    def to_csv(self) -> str:
        """The table as text; nothing stands for None."""
        columns = self.columns()
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for values in zip(*columns.values(), strict=True):
            writer.writerow([_cell(value) for value in values])
        return text.getvalue()

    def write_parquet(self, path: Path) -> None:
        """Write the table; numbers where all of a column are, text otherwise."""
        write_parquet({name: _array(values) for name, values in self.columns().items()}, path)


def _mean(rows: Sequence[Row], axes: Mapping[str, object]) -> Row:
    settings = {name: rows[0].settings[name] for name in axes}
    label = ", ".join(named(name, value) for name, value in settings.items()) or "all seeds"
    lost = [row for row in rows if not row.has_finished]
    if lost:
        return replace(lost[0], settings=settings, label=label)
    measures = {}
    for column in rows[0].measures:
        values = [row.measures[column] for row in rows if row.measures[column] is not None]
        measures[column] = sum(values) / len(values) if values else None
    binding = Counter(row.binding for row in rows).most_common(1)[0][0]
    meets_slo = None if rows[0].meets_slo is None else all(row.meets_slo for row in rows)
    return replace(rows[0], settings=settings, label=label, measures=measures, binding=binding, meets_slo=meets_slo)


def tabulate(study: Study, outcomes: Mapping[str, Mapping[str, Any]], prices: Mapping[str, Price]) -> StudyTable:
    """A study's table, from the outcome of each point by its key."""
    rows = tuple(
        _row(study, number, each, outcomes[each.point.key], prices) for number, each in enumerate(study.points, 1)
    )
    used = {name for each in study.points for name in outcomes[each.point.key]["gpus"] or ()}
    return StudyTable(study, rows, {name: prices[name] for name in sorted(used) if name in prices})


def _row(study: Study, number: int, point: StudyPoint, outcome: Mapping[str, Any], prices: Mapping[str, Price]) -> Row:
    row = Row(
        number=number,
        label=study.label(point),
        settings={name: point.value(name) for name in study.axes},
        key=point.point.key,
        status=outcome["status"],
        reason=outcome["reason"],
    )
    if not row.has_finished:
        return row
    run = {"scenario": outcome["scenario"], "capacity": outcome["capacity"], **outcome["summary"]}
    return replace(
        row,
        measures=measures_of(run, prices),
        binding=most_common_binding(run, run["scenario"]),
        meets_slo=_meets(study.slo, run) if study.slo else None,
        step_times=tuple(step_times_sources(run)),
    )


def _meets(slo: Mapping[str, float], run: Mapping[str, Any]) -> bool:
    """Whether all bounds hold, and nobody was turned away."""
    if run["requests"]["finished"] < run["requests"]["arrived"]:
        return False
    for column, bound_s in slo.items():
        what, measure, _ = column.split("_")
        value_s = run[f"{what}_s"][measure]
        if value_s is not None and value_s > bound_s:
            return False
    return True


def _cell(value: Any) -> Any:
    """Numbers and text as they are, true and false as TOML has them."""
    return shown(value) if isinstance(value, bool | list | dict) else value


def _array(values: Sequence[Any]) -> np.ndarray:
    kinds = {type(value) for value in values if value is not None}
    has_none = any(value is None for value in values)
    if kinds == {bool} and not has_none:
        return np.array(values, dtype=np.bool_)
    if kinds == {int} and not has_none:
        return np.array(values, dtype=np.int64)
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array([None if value is None else shown(value) for value in values], dtype=object)
