"""A study in plain sentences: what it found, what binds, what would change the answer, and what it cannot know."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.binding import Binding
from simulator.measures import COST, Measure
from simulator.step_times import how_far_off, stand_ins
from simulator.study_effects import Effect, best_of, cost_measure, effects_on, front, measure_named
from simulator.study_settings import mistake_in, shown
from simulator.study_table import SEED, Row, StudyTable
from simulator.summary_table import format_seconds, listed
from simulator.toml_file import is_number

__all__ = ["narrate", "slo_in_words"]

_SHOWN_REASONS = 3
_SHOWN_OF_FRONT = 5
_NOTICEABLE = 1.02
"""Ratio of means below which an axis is said to make no difference."""

_BINDS: Mapping[Binding, str] = {
    "nothing": "nothing binds: no queue stood, it could take more load",
    "kv_memory": "KV cache memory seems to bind",
    "max_num_seqs": "max_num_seqs seems to bind: the most requests allowed ran while others waited",
    "token_budget": "max_num_batched_tokens seems to bind: steps were full while requests waited",
    "step_speed": "the speed of the steps seems to bind: requests waited though blocks were free",
}
_REMEDIES: Mapping[Binding, str] = {
    "kv_memory": "more memory for KV cache (more ranks, a larger GPU, an fp8 KV cache, a smaller model)",
    "max_num_seqs": "a larger max_num_seqs",
    "token_budget": "a larger max_num_batched_tokens",
    "step_speed": "faster steps (more ranks, a faster GPU) or more replicas",
}


def narrate(table: StudyTable) -> dict[str, list[str]]:
    """Heading to sentences; a heading with nothing to say is left out. Seeds are told as their means."""
    means = table.over_seeds
    sections = {
        "What it found": [*_outcomes(table), *_best_points(means), *_slo(means), *_fronts(means), *_axes(means)],
        "What binds": list(_bindings(means)),
        "What would change the answer": [*_remedies(means), *_ends_of_axes(means), *_dearer(means)],
        "What it cannot know": list(_limits(table)),
    }
    return {heading: sentences for heading, sentences in sections.items() if sentences}


def slo_in_words(slo: Mapping[str, float]) -> str:
    """TTFT p99 at most 2 s and TPOT p99 at most 50 ms."""
    bounds = []
    for column, bound_s in slo.items():
        what, measure, _ = column.split("_")
        name = {"e2e": "end-to-end latency", "queue": "time in queue"}.get(what, what.upper())
        bounds.append(f"{name} {measure} at most {format_seconds(bound_s)}")
    return listed(bounds)


# What it found.


def _outcomes(table: StudyTable) -> Iterator[str]:
    total, finished = len(table.rows), len(table.finished)
    different = len({row.key for row in table.rows})
    same = f" ({_counted(different, 'different run')})" if different < total else ""
    if finished == total:
        yield f"All {total} points finished{same}." if total > 1 else "The only point finished."
    else:
        lost = Counter(row.status for row in table.unfinished)
        parts = [f"{count} {_lost(status, count)}" for status, count in sorted(lost.items(), reverse=True)]
        yield f"{finished} of {total} points finished{same}; {listed(parts)}."
        yield from _reasons(table.unfinished)
    away = [row for row in table.finished if not row.served_all]
    if away and len(away) == finished:
        yield "Every point turned requests away: they are compared by what they served."
    elif away:
        are = "is" if len(away) == 1 else "are"
        yield f"{_counted(len(away), 'point')} turned requests away and {are} not compared with the others."
    if SEED in table.study.axes and table.finished:
        yield f"All that follows is in means over {len(table.study.axes[SEED])} seeds."


def _lost(status: str, count: int) -> str:
    return status if status == "failed" else f"{'was' if count == 1 else 'were'} {status}"


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    by_reason: dict[str, list[Row]] = {}
    for row in rows:
        by_reason.setdefault(row.reason or "no reason was given", []).append(row)
    for reason, alike in list(by_reason.items())[:_SHOWN_REASONS]:
        others = f" and {_counted(len(alike) - 1, 'other')}" if len(alike) > 1 else ""
        yield f"{alike[0].label}{others}: {reason}."
    if len(by_reason) > _SHOWN_REASONS:
        yield f"{_counted(len(by_reason) - _SHOWN_REASONS, 'further reason')}: see the table."


def _best_points(table: StudyTable) -> Iterator[str]:
    if len(table.comparable) < 2:
        return
    for measure in _key_measures(table):
        best = best_of(table.comparable, measure)
        if not best:
            continue
        word = "Lowest" if measure.better == "low" else "Highest"
        if len(best) == len(table.comparable):
            yield f"{measure.title} is the same at all points: {_value(best[0], measure)}."
            continue
        also = f" (and {_counted(len(best) - 1, 'other')})" if len(best) > 1 else ""
        yield f"{word} {_inside(measure.title)}: {_value(best[0], measure)} at {best[0].label}{also}."


def _slo(table: StudyTable) -> Iterator[str]:
    if not table.study.slo or not table.finished:
        return
    bounds = slo_in_words(table.study.slo)
    meeting = [row for row in table.finished if row.meets_slo]
    if not meeting:
        yield f"No point meets the SLO ({bounds})."
        return
    cost = cost_measure(table)
    cheapest = best_of(meeting, cost)
    count = f"{len(meeting)} of {len(table.finished)} points meet" if len(meeting) > 1 else "One point meets"
    if not cheapest:
        yield f"{count} the SLO ({bounds})."
        return
    word = "cheapest" if cost.column == COST else "one with the fewest GPU hours"
    figure = f"{_value(cheapest[0], cost)} {_per(cost)}"
    yield f"{count} the SLO ({bounds}); the {word} of them is {cheapest[0].label}, {figure}."


def _fronts(table: StudyTable) -> Iterator[str]:
    cost = cost_measure(table)
    for column in ("ttft_p99_s", "tpot_p99_s"):
        best = front(table.comparable, cost, measure_named(column))
        if len(table.comparable) > 1 and best:
            title = measure_named(column).title
            if len(best) == 1:
                yield f"In {_inside(cost.title)} and {title} together nothing beats {best[0].label}."
            else:
                yield f"{len(best)} points trade {_inside(cost.title)} against {title}: {_pointed(best)}."


def _axes(table: StudyTable) -> Iterator[str]:
    if len(table.study.axes) < 2:
        return
    for measure in _key_measures(table):
        effects = effects_on(table, measure)
        strong = [effect for effect in effects if effect.ratio >= _NOTICEABLE]
        if not strong:
            if effects:
                yield f"{measure.title} hardly depends on {listed([effect.axis for effect in effects])}."
            continue
        first, *others = strong
        then = f"; then on {listed([effect.axis for effect in others])}" if others else ""
        weak = [effect.axis for effect in effects if effect.ratio < _NOTICEABLE]
        hardly = f"; hardly on {listed(weak)}" if weak else ""
        most = " most" if len(effects) > 1 else ""
        yield f"{measure.title} depends{most} on {first.axis}: {_span(first)}, all else equal{then}{hardly}."


def _span(effect: Effect) -> str:
    low, high = (effect.means[value] for value in (effect.lowest, effect.highest))
    text = effect.measure.text
    return f"{text(low)} at {effect.lowest}, {text(high)} at {effect.highest}"


# What binds, and what would change it.


def _bindings(table: StudyTable) -> Iterator[str]:
    for row, whys in _best_rows(table).items():
        if row.binding is not None:
            yield f"At {row.label} ({listed(whys)}) {_BINDS[row.binding]}."
    counts = Counter(row.binding for row in table.finished)
    if len(table.finished) > 2:
        parts = [f"{_short(binding)} at {count}" for binding, count in counts.most_common() if binding is not None]
        yield f"Of all {len(table.finished)} points that finished: {listed(parts)}."


def _short(binding: Binding) -> str:
    names = {"nothing": "nothing", "kv_memory": "KV cache memory", "step_speed": "the speed of the steps"}
    return names.get(binding, "max_num_batched_tokens" if binding == "token_budget" else binding)


def _remedies(table: StudyTable) -> Iterator[str]:
    told: set[Binding] = set()
    for row in _best_rows(table):
        binding = row.binding
        if binding is not None and binding in _REMEDIES and binding not in told:
            told.add(binding)
            yield f"Where {_short(binding)} binds, {_REMEDIES[binding]} would help."
    if any(row.binding == "nothing" for row in _best_rows(table)):
        yield "Where nothing binds, more load would make tokens cheaper: the same GPUs would serve more of them."


def _ends_of_axes(table: StudyTable) -> Iterator[str]:
    """Best values beyond which nobody has looked."""
    ends: dict[tuple[str, str, str], list[str]] = {}
    for measure in _key_measures(table):
        for effect in effects_on(table, measure):
            values = table.study.axes[effect.axis]
            if effect.ratio < _NOTICEABLE or not all(map(is_number, values)):
                continue
            best = effect.lowest if measure.better == "low" else effect.highest
            found = _end_with(best, effect.axis, values)
            if found is not None:
                ends.setdefault((effect.axis, *found), []).append(measure.title)
    for (axis, end, beyond), titles in ends.items():
        yield f"{listed(titles)}: best at the end of {axis}, {end}; {beyond} values were not tried."


def _end_with(best: str, axis: str, values: Sequence[Any]) -> tuple[str, str] | None:
    """(the end of an axis, what lies beyond) if the best value is that end, and something does."""
    least, most = min(values), max(values)
    if best == shown(most):
        return best, "larger"
    smaller = least - 1 if isinstance(least, int) else least / 2
    return (best, "smaller") if best == shown(least) and mistake_in(axis, smaller, Path()) is None else None


def _dearer(table: StudyTable) -> Iterator[str]:
    """By how much the cheapest point's GPUs may cost more until another point with other GPUs is as cheap."""
    cost = measure_named(COST)
    rows = [row for row in table.comparable if row.meets_slo] or table.comparable
    cheapest = best_of(rows, cost)
    if not cheapest:
        return
    best = cheapest[0]
    rivals = best_of([row for row in rows if _gpu_price(row) != _gpu_price(best)], cost)
    if rivals and best.measures[COST] > 0:
        more = rivals[0].measures[COST] / best.measures[COST] - 1
        by = f"{more:.0%}" if more >= 0.01 else "less than 1%"
        among = " that meets the SLO" if best.meets_slo else ""
        yield f"{best.label} stays the cheapest{among} until its GPUs cost {by} more; then {rivals[0].label} is."


def _gpu_price(row: Row) -> float | None:
    per_hour = row.measures.get("dollars_per_hour")
    return None if per_hour is None else per_hour / row.measures["num_gpus"]


# What it cannot know.


def _limits(table: StudyTable) -> Iterator[str]:
    if not table.finished:
        return
    if all("step_time_s" in point.settings for point in table.study.points):
        yield "Every step took the stated time: speeds of GPUs are not in it."
    else:
        chosen = (point.settings.get("step_times", "roofline") for point in table.study.points)
        instead = stand_ins(source for row in table.finished for source in row.step_times)
        yield f"{how_far_off(dict.fromkeys(map(str, chosen)))}{instead} Trust orders and ratios more than milliseconds."
    yield _seeds(table)
    if table.prices:
        dates = sorted({str(price.date) for price in table.prices.values() if price.date is not None})
        of_dates = f" of {listed(dates)}" if dates else ""
        rates = [f"{name} ${price.dollars_per_hour:g} an hour" for name, price in table.prices.items()]
        yield f"Prices are those of a table{of_dates}, not yours: {listed(rates)}."
    if any(row.measures.get(COST) is None for row in table.finished):
        yield "Where a GPU has no known price, cost is unknown: state it in [prices]; GPU hours stand in for it."
    yield "Cost is at the load of the trace: a GPU is paid for while it idles, too."


def _seeds(table: StudyTable) -> str:
    measure = measure_named("output_tokens_per_s")
    effect = next((each for each in effects_on(table, measure) if each.axis == SEED), None)
    if effect is None:
        return "Each point is one run with one seed: there is no interval, and small differences may be chance."
    return (
        f"{len(effect.means)} seeds differ by {effect.ratio - 1:.1%} in {_inside(measure.title)}:"
        " of points with different traffic, smaller differences may be chance."
    )


# Words.


def _key_measures(table: StudyTable) -> list[Measure]:
    return [*map(measure_named, ("output_tokens_per_s", "ttft_p99_s", "tpot_p99_s")), cost_measure(table)]


def _best_rows(table: StudyTable) -> dict[Row, list[str]]:
    """The best points, each with what it is best in."""
    best: dict[Row, list[str]] = {}
    for measure in _key_measures(table):
        for row in best_of(table.comparable, measure)[:1]:
            word = "lowest" if measure.better == "low" else "highest"
            best.setdefault(row, []).append(f"{word} {_inside(measure.title)}")
    for row in best_of([row for row in table.comparable if row.meets_slo], cost_measure(table))[:1]:
        best.setdefault(row, []).append("cheapest that meets the SLO")
    return best


def _value(row: Row, measure: Measure) -> str:
    return measure.text(row.measures[measure.column])


def _per(measure: Measure) -> str:
    return "per million output tokens" if measure.column == COST else "GPU hours per million output tokens"


def _inside(title: str) -> str:
    """A title in a sentence: TTFT stays as it is."""
    return title if title[1:2].isupper() else title[:1].lower() + title[1:]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _pointed(rows: Sequence[Row]) -> str:
    """Points by what sets them apart; a label has commas of its own."""
    labels = [row.label for row in rows[:_SHOWN_OF_FRONT]]
    if len(rows) > _SHOWN_OF_FRONT:
        labels.append(f"{len(rows) - _SHOWN_OF_FRONT} more")
    return f"{'; '.join(labels[:-1])}; and {labels[-1]}"
