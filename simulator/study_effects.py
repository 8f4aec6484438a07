"""What a study's axes do to its measures, and which points no other one beats."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.measures import COST, COSTLESS, MEASURES, Measure
from simulator.study_settings import named, shown
from simulator.study_table import Row, StudyTable

__all__ = ["SEED", "Effect", "best_of", "cost_measure", "effects_on", "front", "measure_named", "over_seeds"]

SEED = "seed"
"""The axis along which points differ by chance alone."""
_BY_COLUMN = {measure.column: measure for measure in MEASURES}


def measure_named(column: str) -> Measure:
    """The measure of a column."""
    return _BY_COLUMN[column]


def cost_measure(table: StudyTable) -> Measure:
    """Dollars per million output tokens; GPU hours, unless the price of every point is known."""
    has_prices = all(row.measures.get(COST) is not None for row in table.comparable)
    return measure_named(COST if has_prices else COSTLESS)


def over_seeds(table: StudyTable) -> StudyTable:
    """The same with one row for points that differ in nothing but their seed: means, and the SLO met by all of them.

    Where a seed did not finish, there is no mean, but that. A table without seeds comes back as it is.
    """
    if SEED not in table.study.axes:
        return table
    axes = {name: values for name, values in table.study.axes.items() if name != SEED}
    alike: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in table.rows:
        alike[tuple(shown(row.settings[name]) for name in axes)].append(row)
    rows = [_mean(each, axes) for each in alike.values()]
    return replace(table, study=replace(table.study, axes=axes), rows=tuple(rows))


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
