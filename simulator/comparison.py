"""Two runs side by side: what differs in, what differs out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.binding import most_common_binding
from simulator.measures import MEASURES, Measure, measures_of
from simulator.prices import Price
from simulator.summary_table import flatten

__all__ = ["Comparison", "Difference", "MeasuredChange", "compare"]

_COUNTED = ("layers", "padding_layers")
"""Figures of a group that are added up."""
_ALIKE = 5e-7
"""Relative difference that six digits cannot show."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting, or a figure of the capacity, that the runs do not share; None: it has none."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """One measure of both runs."""

    measure: Measure
    first: float | None
    second: float | None

    @property
    def change_pct(self) -> float | None:
        """From the first to the second; None where one has none, or the first is 0."""
        if self.first is None or self.second is None:
            return None
        if self.first == 0:
            return 0.0 if self.second == 0 else None
        return 100 * (self.second / self.first - 1)

    @property
    def better(self) -> str | None:
        """Which of them: first or second; None where they are equal or neither is better."""
        if self.first is None or self.second is None or self.measure.better is None:
            return None
        if abs(self.second - self.first) <= _ALIKE * max(abs(self.first), abs(self.second)):
            return None
        return "second" if (self.second < self.first) == (self.measure.better == "low") else "first"


@dataclass(frozen=True)
class Comparison:
    """What sets two runs apart."""

    settings: tuple[Difference, ...]
    capacity: tuple[Difference, ...]
    measures: tuple[MeasuredChange, ...]
    """All that at least one has."""
    bindings: tuple[str, str]
    """What seems to bind each."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "settings": {each.name: {"first": each.first, "second": each.second} for each in self.settings},
            "capacity": {each.name: {"first": each.first, "second": each.second} for each in self.capacity},
            "measures": {
                each.measure.column: {
                    "first": each.first,
                    "second": each.second,
                    "change_pct": None if each.change_pct is None else round(each.change_pct, 4),
                    "better": each.better,
                }
                for each in self.measures
            },
            "binding": {"first": self.bindings[0], "second": self.bindings[1]},
        }


def compare(first: Mapping[str, Any], second: Mapping[str, Any], prices: Mapping[str, Price]) -> Comparison:
    """Compare two runs by what their summary.json says. Costs are by `prices`."""
    one, two = measures_of(first, prices), measures_of(second, prices)
    changes = tuple(
        MeasuredChange(measure, one[measure.column], two[measure.column])
        for measure in MEASURES
        if measure.path[0] != "capacity" and not (one[measure.column] is None and two[measure.column] is None)
    )
    return Comparison(
        settings=tuple(_differences(_settings(first), _settings(second))),
        capacity=tuple(_differences(_capacity(first), _capacity(second))),
        measures=changes,
        bindings=(most_common_binding(first, first["scenario"]), most_common_binding(second, second["scenario"])),
    )


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Of the first server, and of each replica that is another one."""
    settings = dict(flatten(run["scenario"]))
    for number, replica in enumerate(run.get("replicas", ())):
        for name, value in flatten(replica["scenario"]):
            if value != settings.get(name):
                settings[f"replica {number} {name}"] = value
    return settings


def _capacity(run: Mapping[str, Any]) -> dict[str, Any]:
    """In all; of a fleet, figures that have no sum are those of its first replica."""
    capacity = {**(run["replicas"][0]["capacity"] if run.get("replicas") else {}), **run["capacity"]}
    groups = capacity.pop("groups", ())
    return {**capacity, "groups": len(groups), **_by_kind(groups)}


def _by_kind(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the groups of each kind of layer: layers in all of them, all else as it is in each."""
    figures: dict[str, Any] = {}
    for group in groups:
        for name, value in group.items():
            if name in _COUNTED:
                figures[f"{group['kind']} {name}"] = figures.get(f"{group['kind']} {name}", 0) + value
            elif name != "kind":
                figures[f"{group['kind']} {name}"] = value
    return figures


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield Difference(name, first.get(name), second.get(name))
