"""What a study leaves behind: a tidy table (CSV, Parquet), the whole as JSON, and a report that needs nothing else."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from simulator.measures import COST, Measure
from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError
from simulator.study_effects import cost_measure, measure_named
from simulator.study_point import kvplan_version
from simulator.study_settings import shown
from simulator.study_table import SEED, Row, StudyTable

__all__ = ["import_for_report", "points_table", "study_json", "write_study"]

_SHOWN = ("output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "prefix_cache_hit_rate", "preemptions")
_HEADINGS = {
    "Cost per million output tokens": "$/M output",
    "GPU hours per million output tokens": "GPU h/M output",
    "Prefix cache hit rate": "Hit rate",
}
_BINDINGS = {"kv_memory": "KV memory", "token_budget": "token budget", "step_speed": "step speed"}
_FIGURES = {
    "measures": (
        "What each setting does",
        "A panel for each measure. A cross at the edge is a point that was refused or failed.",
    ),
    "fronts": (
        "Cost against latency",
        "Lower is better for both. Points that turned requests away are left out.",
    ),
}
"""Title and caption of each."""


Narration = Mapping[str, Sequence[str]]
"""What `sweep_words.narrate` says."""


def write_study(table: StudyTable, narration: Narration, folder: Path, *, with_report: bool = True) -> list[Path]:
    """Write all files of a study into `folder`, each whole; gives them back. Raises ScenarioError if that fails."""
    text = json.dumps(study_json(table, narration), indent=2) + "\n"
    writers: dict[str, Callable[[Path], object]] = {
        "table.csv": lambda path: path.write_text(table.to_csv(), encoding="utf-8", newline=""),
        "table.parquet": table.write_parquet,
        "study.json": lambda path: path.write_text(text, encoding="utf-8"),
    }
    if with_report:
        writers["report.html"] = lambda path: path.write_text(_render(table, narration), encoding="utf-8")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in writers.items():
            write_whole(folder / name, write)
    except OSError as error:
        raise ScenarioError(f"--out: {error.filename or folder} cannot be written: {error.strerror}") from None
    return [folder / name for name in writers]


def import_for_report() -> None:
    """Import what a report is drawn with: it takes half a second, which is better spent while others compute."""
    import simulator.plots_sweep
    import simulator.report  # noqa: F401
    from simulator.plots import import_matplotlib

    import_matplotlib()


def study_json(table: StudyTable, narration: Narration) -> dict[str, Any]:
    """All of a study but its points' runs, in plain JSON values."""
    study, columns = table.study, table.columns()
    return {
        "study": study.name,
        "kvplan": kvplan_version(),
        "axes": {name: list(values) for name, values in study.axes.items()},
        "shared": _shared(table),
        "slo": dict(study.slo),
        "prices": {name: price.to_json() for name, price in table.prices.items()},
        "narration": dict(narration),
        "points": [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)],
    }


def _shared(table: StudyTable) -> dict[str, Any]:
    """Settings that are stated and equal for all points."""
    first = table.study.points[0]
    return {name: value for name, value in first.settings.items() if name not in table.study.axes}


# For a person.


def points_table(table: StudyTable) -> Table:
    """A row for each point, for the terminal; one that did not finish says so."""
    cost = cost_measure(table)
    measures = [*map(measure_named, ("output_tokens_per_s", "ttft_p99_s", "tpot_p99_s")), cost]
    per_million = "$/M output" if cost.column == COST else "GPU h/M output"
    lines = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("#", "Output/s", "TTFT p99", "TPOT p99", per_million):
        lines.add_column(heading, justify="right", no_wrap=True)
    for heading in ("Binds", "SLO") if table.study.slo else ("Binds",):
        lines.add_column(heading, no_wrap=True)
    lines.add_column("Point", overflow="fold")
    for row in table.rows:
        cells = [measure.text(row.measures.get(measure.column)) for measure in measures]
        slo = [_slo(row)] if table.study.slo else []
        lines.add_row(str(row.number), *cells, _binds(row) if row.has_finished else row.status, *slo, row.label)
    return lines


def _binds(row: Row) -> str:
    return _BINDINGS.get(row.binding or "", row.binding or "")


def _slo(row: Row) -> str:
    return {True: "met", False: "missed", None: ""}[row.meets_slo]


def _measures(table: StudyTable) -> list[Measure]:
    return [*map(measure_named, _SHOWN), cost_measure(table)]


def _headings(table: StudyTable) -> list[str]:
    headings = [_HEADINGS.get(measure.title, measure.title) for measure in _measures(table)]
    return [*headings, "Binds", *(["SLO"] if table.study.slo else [])]


def _cells(row: Row, table: StudyTable) -> list[str]:
    cells = [measure.text(row.measures[measure.column]) for measure in _measures(table)]
    return [*cells, _binds(row), *([_slo(row)] if table.study.slo else [])]


def _render(table: StudyTable, narration: Narration) -> str:
    from simulator.report import render_page

    found = narration["What it found"]
    return render_page(
        "sweep.html.j2",
        title=f"Study {table.study.name}",
        lead=found[0],
        sections={name: said for name, said in {**narration, "What it found": found[1:]}.items() if said},
        figures=_figures(table),
        axes=list(table.study.axes),
        heading=_headings(table),
        rows=[_report_row(row, table) for row in table.rows],
        shared=[(name, shown(value)) for name, value in _shared(table).items()],
        prices=table.prices,
    )


def _report_row(row: Row, table: StudyTable) -> Mapping[str, Any]:
    return {
        "number": row.number,
        "settings": [shown(value) for value in row.settings.values()],
        "has_finished": row.has_finished,
        "measures": _cells(row, table) if row.has_finished else [],
        "status": row.status,
        "reason": row.reason,
    }


def _figures(table: StudyTable) -> Sequence[Mapping[str, Any]]:
    means = table.over_seeds
    if not means.finished:
        return []
    from markupsafe import Markup

    from simulator.plots import as_svg
    from simulator.plots_sweep import draw_fronts, draw_measures, fronts_inches, has_front, measures_inches
    from simulator.report import inline_svg

    of_seeds = "" if means is table else f" Means over {len(table.study.axes[SEED])} seeds."
    drawn = {"measures": as_svg(partial(draw_measures, means), measures_inches(means))}
    if has_front(means):
        drawn["fronts"] = as_svg(partial(draw_fronts, means), fronts_inches(means))
    return [
        {"title": _FIGURES[name][0], "caption": _FIGURES[name][1] + of_seeds, "svg": Markup(inline_svg(name, svg))}
        for name, svg in drawn.items()
    ]
