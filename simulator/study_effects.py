"""What a study's axes do to its measures, and which points no other one beats."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulator.measures import COST, COSTLESS, MEASURES, Measure
from simulator.study_settings import shown
from simulator.study_table import Row, StudyTable

__all__ = ["Effect", "best_of", "cost_measure", "effects_on", "front", "measure_named"]

_BY_COLUMN = {measure.column: measure for measure in MEASURES}


def measure_named(column: str) -> Measure:
    """The measure of a column."""
    return _BY_COLUMN[column]


def cost_measure(table: StudyTable) -> Measure:
    """Dollars per million output tokens; GPU hours, unless the price of every point is known."""
    has_prices = all(row.measures.get(COST) is not None for row in table.comparable)
    return measure_named(COST if has_prices else COSTLESS)


@dataclass(frozen=True)
class Effect:
    """What one axis does to one measure: its mean at each value, all else equal."""

    axis: str
    measure: Measure
    means: Mapping[str, float]
    """By the axis's value, as it is shown, in its order."""

    @property
    def ratio(self) -> float:
        """Largest mean to smallest, at least 1; infinite where the smallest is 0."""
        low, high = min(self.means.values()), max(self.means.values())
        return high / low if low > 0 else float("inf") if high > 0 else 1.0

    @property
    def lowest(self) -> str:
        """The value of the axis with the smallest mean."""
        return min(self.means, key=lambda value: self.means[value])

    @property
    def highest(self) -> str:
        """The value of the axis with the largest mean."""
        return max(self.means, key=lambda value: self.means[value])


def effects_on(table: StudyTable, measure: Measure) -> list[Effect]:
    """What each axis does to a measure, the one that does most first.

    For each axis only those points count that have a fellow at each of its other values with all else equal: a point
    that was refused or turned somebody away would otherwise shift a mean. An axis without such points is left out.
    """
    axes = list(table.study.axes)
    points = [
        ([shown(value) for value in row.settings.values()], row.measures[measure.column])
        for row in table.comparable
        if row.measures.get(measure.column) is not None
    ]
    effects = []
    for nth, axis in enumerate(axes):
        texts = [shown(value) for value in table.study.axes[axis]]
        alike: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        for at, value in points:
            alike[(*at[:nth], *at[nth + 1 :])][at[nth]] = value
        whole = [values_of for values_of in alike.values() if len(values_of) == len(texts)]
        if whole:
            means = {text: sum(each[text] for each in whole) / len(whole) for text in texts}
            effects.append(Effect(axis, measure, means))
    return sorted(effects, key=lambda effect: -effect.ratio)


def best_of(rows: Sequence[Row], measure: Measure) -> list[Row]:
    """The rows with the best value of a measure, all different runs that are equal; none where nobody has a value."""
    having = [row for row in rows if row.measures.get(measure.column) is not None]
    if not having:
        return []
    choose = min if measure.better == "low" else max
    best = choose(row.measures[measure.column] for row in having)
    return _different(row for row in having if row.measures[measure.column] == best)


def front(rows: Sequence[Row], *measures: Measure) -> list[Row]:
    """The Pareto front, where less of each measure is better: rows that no other beats in one and equals in the rest.

    In the order of the first measure; rows without a value of one are left out.
    """
    having = [
        (tuple(row.measures[measure.column] for measure in measures), row)
        for row in rows
        if all(row.measures.get(measure.column) is not None for measure in measures)
    ]
    kept = [
        (values, row)
        for values, row in having
        if not any(
            other != values and all(mine >= theirs for mine, theirs in zip(values, other, strict=True))
            for other, _ in having
        )
    ]
    return _different(row for _, row in sorted(kept, key=lambda each: (each[0], each[1].number)))


def _different(rows: Iterable[Row]) -> list[Row]:
    """One for each run: points that resolve to the same one are the same."""
    return list({row.key: row for row in reversed(list(rows))}.values())[::-1]
