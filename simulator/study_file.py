"""A study as a person writes it, in TOML: settings for all, and a grid or a list of points that differ in some.

```
name = "blocks"            the folder of its results; the file's name, unless stated

[base]                     settings of all points, with the names of `kvplan simulate`
model = "gemma-3-27b"

[grid]                     every combination, or [[point]] tables, one after the other
block-size = [16, 32]

[slo]                      what a good point keeps: columns of the table, at most so much
ttft_p99_s = 2.0

[prices]                   dollars an hour, where they differ from `prices.toml`
h100-80gb = 2.5
```

Everything is checked before anything runs, and all mistakes are told at once.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from simulator.metrics import STATISTICS
from simulator.mistakes import MISTAKES
from simulator.prices import Price, prices_in
from simulator.scenario import ScenarioError
from simulator.study_point import Point
from simulator.study_settings import (
    NOT_FOR_STUDIES,
    SETTINGS,
    default_of,
    mistake_in,
    named,
    point_of,
    shown,
    spelled,
    unused_settings,
)
from simulator.summary_table import LATENCY_NAMES
from simulator.toml_file import is_number, read_toml

__all__ = ["MOST_POINTS", "SLO_MEASURES", "Study", "StudyPoint", "read_study"]

MOST_POINTS = 1000
"""Of a study, unless somebody says that more are meant."""
SLO_MEASURES = tuple(f"{name.removesuffix('_s')}_{statistic}_s" for name in LATENCY_NAMES for statistic in STATISTICS)
_TABLES = ("name", "base", "grid", "point", "slo", "prices")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class StudyPoint:
    """A point, and how the study names it."""

    settings: Mapping[str, Any]
    """All that was stated for it, by name, as it was written."""
    point: Point

    def value(self, name: str) -> Any:
        """Of a setting; where it was not stated, the command line's default."""
        return self.settings.get(name, default_of(name))


@dataclass(frozen=True)
class Study:
    """What is to be run, and how it is to be judged."""

    name: str
    points: tuple[StudyPoint, ...]
    """No two state the same settings."""
    axes: Mapping[str, tuple[Any, ...]]
    """Settings in which points differ, each with its values in the order in which they are written."""
    is_grid: bool
    """Whether every combination of the axes' values is a point."""
    slo: Mapping[str, float]
    """Seconds that a measure (see `SLO_MEASURES`) may be at most."""
    prices: Mapping[str, Price]
    """Those that the study states."""

    def label(self, point: StudyPoint) -> str:
        """What sets a point apart: "h200, block_size 16"."""
        stated = [named(name, point.settings[name]) for name in self.axes if name in point.settings]
        return ", ".join(stated) or "the base"


def read_study(file: Path, most_points: int = MOST_POINTS) -> Study:
    """The study in a file; names of files in it are relative to its folder.

    Raises ScenarioError where the file cannot be read, or with all its mistakes, a line each.
    """
    return _Reader(file, most_points).study(read_toml(file))


class _Reader:
    """Reads a study's tables, and collects what is wrong with them."""

    def __init__(self, file: Path, most_points: int) -> None:
        self._file = file
        self._most_points = most_points
        self._mistakes: list[str] = []

    def study(self, tables: Mapping[str, Any]) -> Study:
        self._check_keys("", tables, _TABLES)
        name = self._name(tables.get("name", self._file.stem))
        base = self._settings("[base]", tables.get("base", {}))
        varied = self._grid(tables) if "grid" in tables else self._list(tables)
        slo = self._slo(tables.get("slo", {}))
        prices, mistakes = prices_in(tables.get("prices", {}), f"{self._file.name} [prices]")
        self._mistakes += [mistake.removeprefix(f"{self._file.name} ") for mistake in mistakes]
        self._stop_if_mistaken()
        stated = _without_repetitions({**base, **each} for each in varied)
        points = self._points(stated, {*base, *(name for each in varied for name in each)})
        self._stop_if_mistaken()
        axes = _axes(stated)
        is_grid = math.prod(map(len, axes.values())) == len(points)
        return Study(name, points, axes, is_grid, slo, prices)

    def _stop_if_mistaken(self) -> None:
        if self._mistakes:
            noun = "a mistake" if len(self._mistakes) == 1 else f"{len(self._mistakes)} mistakes"
            raise ScenarioError("\n  ".join([f"{self._file} has {noun}, nothing was run:", *self._mistakes]))

    def _name(self, name: object) -> str:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self._mistakes.append(f"name: must be letters, digits, and any of . _ - between them, got {name!r}")
        return str(name)

    def _check_keys(self, place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                self._mistakes.append(f"{place}{key}: {_unknown(key, known)}")

    # Settings.

    def _settings(self, place: str, table: object) -> dict[str, Any]:
        """Those of one table, by their names."""
        if not isinstance(table, Mapping):
            self._mistakes.append(f"{place}: must be a table of settings, got {table!r}")
            return {}
        settings: dict[str, Any] = {}
        for key, value in table.items():
            name = self._setting(place, key, settings)
            if name is not None:
                self._add(f"{place} {key}", mistake_in(name, value, self._file.parent))
                settings[name] = value
        return settings

    def _setting(self, place: str, key: str, others: Mapping[str, Any]) -> str | None:
        """Its name; None where there is none such, or it is there already."""
        name = spelled(key)
        if name in NOT_FOR_STUDIES:
            self._mistakes.append(f"{place} {key}: measures this machine, not the server: it is not for studies")
        elif name not in SETTINGS:
            self._mistakes.append(f"{place} {key}: {_unknown(name, SETTINGS)}")
        elif name in others:
            self._mistakes.append(f"{place} {key}: is said twice, as {name} too")
        else:
            return name
        return None

    def _add(self, place: str, mistake: str | None) -> None:
        if mistake is not None:
            self._mistakes.append(f"{place}: {mistake}")

    def _grid(self, tables: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The settings of each combination, the last axis varying fastest."""
        if "point" in tables:
            self._mistakes.append("[grid] and [[point]]: a study has one of them, not both")
        grid = tables["grid"]
        if not isinstance(grid, Mapping) or not grid:
            self._mistakes.append("[grid]: must be a table of lists such as block-size = [16, 32]")
            return []
        axes: dict[str, list[Any]] = {}
        for key, values in grid.items():
            name = self._setting("[grid]", key, axes)
            if name is None:
                continue
            if not isinstance(values, list) or not values:
                self._mistakes.append(f"[grid] {key}: must be a list of values, got {values!r}")
                continue
            for nth, value in enumerate(values, 1):
                self._add(f"[grid] {key}, value {nth}", mistake_in(name, value, self._file.parent))
            axes[name] = values
        sizes = [len(values) for values in axes.values()]
        if self._are_too_many("[grid]", math.prod(sizes), f" ({' × '.join(map(str, sizes))})"):
            return []
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]

    def _list(self, tables: Mapping[str, Any]) -> list[dict[str, Any]]:
        listed = tables.get("point")
        if not isinstance(listed, list) or not listed:
            self._mistakes.append("there is nothing to vary: add a [grid] of lists, or [[point]] tables")
            return []
        if self._are_too_many("[[point]]", len(listed), ""):
            return []
        return [self._settings(f"[[point]] {nth}", table) for nth, table in enumerate(listed, 1)]

    def _are_too_many(self, place: str, num_points: int, how: str) -> bool:
        if num_points <= self._most_points:
            return False
        self._mistakes.append(
            f"{place}: makes {num_points:,} points{how}, more than {self._most_points:,};"
            f" if so many are meant, say --max-points {num_points}"
        )
        return True

    # What settings make together.

    def _points(self, stated: Sequence[Mapping[str, Any]], names: Iterable[str]) -> tuple[StudyPoint, ...]:
        points: list[StudyPoint] = []
        told: set[str] = set()
        for settings in stated:
            try:
                points.append(StudyPoint(settings, point_of(settings, self._file.parent)))
            except MISTAKES as error:
                if str(error) not in told:  # once, not for each combination with the same fault
                    told.add(str(error))
                    self._mistakes.append(f"{_together(settings, stated)}: {error}")
        if not told:
            self._mistakes += unused_settings(stated, names)
        return tuple(points)

    # How points are judged.

    def _slo(self, table: object) -> dict[str, float]:
        if not isinstance(table, Mapping):
            self._mistakes.append(f"[slo]: must be a table such as ttft_p99_s = 2.0, got {table!r}")
            return {}
        self._check_keys("[slo] ", table, SLO_MEASURES)
        for key, bound in table.items():
            if not is_number(bound) or not 0 < bound < math.inf:
                self._mistakes.append(f"[slo] {key}: must be a number of seconds above 0, got {bound!r}")
        return dict(table)


def _unknown(key: str, known: Sequence[str]) -> str:
    near = get_close_matches(key, known, n=1)
    return f"is not known; did you mean {near[0]}?" if near else "is not known"


def _together(settings: Mapping[str, Any], stated: Sequence[Mapping[str, Any]]) -> str:
    """Which point it is: its values of what varies."""
    axes = _axes(stated)
    return ", ".join(named(name, settings[name]) for name in axes if name in settings) or "[base]"


def _without_repetitions(stated: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each once, in the order of the first."""
    kept: list[Mapping[str, Any]] = []
    seen = set()
    for settings in stated:
        text = shown(dict(sorted(settings.items())))
        if text not in seen:
            seen.add(text)
            kept.append(settings)
    return kept


def _axes(stated: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Settings in which they differ, each with its values in order; one that is not stated has its default."""
    names = dict.fromkeys(name for settings in stated for name in settings)
    axes = {}
    for name in names:
        found = [settings.get(name, default_of(name)) for settings in stated]
        values = {shown(value): value for value in found}
        if len(values) > 1:
            axes[name] = tuple(values.values())
    return axes
