"""`kvplan sweep`: run a study, side by side and from where it stopped, and say what it found."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from simulator.executors import executors_at
from simulator.prices import known_prices, read_prices
from simulator.progress import PointsProgress
from simulator.run_folder import check_folder
from simulator.scenario import ScenarioError
from simulator.study_file import MOST_POINTS, read_study
from simulator.study_run import run_points
from simulator.study_store import PointStore
from simulator.study_table import StudyTable, tabulate
from simulator.sweep_report import import_for_report, points_table, study_json, write_study
from simulator.sweep_words import narrate

__all__ = ["SweepOptions", "run_sweep"]

_STOPPED_BY_KEYBOARD = 130
_MOST_SHOWN = 40
"""Points of a table in a terminal."""


@dataclass(frozen=True)
class SweepOptions:
    """How a study is run and shown; what it is stands in its file."""

    out: Path | None = None
    num_workers: int | None = None
    executor: str | None = None
    prices: Path | None = None
    most_points: int = MOST_POINTS
    as_json: bool = False
    no_report: bool = False


def run_sweep(file: Path, options: SweepOptions) -> int:
    """Run the study in `file`, but for points that its folder has already; gives back the exit code.

    0, 1 where no point finished, or 130 where somebody stopped it: what has finished is kept.
    Raises ValueError with a text for a person where the study, or an option, is wrong.
    """
    if options.out is not None and not options.out.name:
        raise ScenarioError(f"--out: must name a folder, got {str(options.out)!r}")
    study = read_study(file, options.most_points)
    prices = {**known_prices(), **(read_prices(options.prices) if options.prices else {}), **study.prices}
    executors = executors_at(options.executor, options.num_workers)
    folder = options.out or Path("studies") / study.name
    check_folder(folder)
    store = PointStore(folder / "points")
    store.open()
    points = {each.point.key: each.point for each in study.points}
    outcomes, damaged = store.load(points)
    if damaged:
        are = "is" if len(damaged) == 1 else "are"
        _say(f"{len(damaged)} of the points kept in {store.folder} {are} damaged and will be run again")
    unfinished = {key: point for key, point in points.items() if key not in outcomes}
    try:
        with PointsProgress(study.name, len(points), len(outcomes), shown=not options.as_json) as progress:

            def keep(key: str, outcome: dict[str, Any]) -> None:
                store.save(key, outcome)
                outcomes[key] = outcome
                progress.ended(has_finished=outcome["status"] == "finished")

            meanwhile = (lambda: None) if options.no_report else import_for_report
            run_points(unfinished, executors, keep, progress.running, meanwhile)
    except KeyboardInterrupt:
        _say(f"stopped with {len(outcomes)} of {len(points)} points in {folder}; the same command goes on from there")
        return _STOPPED_BY_KEYBOARD
    table = tabulate(study, outcomes, prices)
    narration = narrate(table)
    files = write_study(table, narration, folder, with_report=not options.no_report)
    if options.as_json:
        sys.stdout.write(json.dumps(study_json(table, narration), indent=2) + "\n")
    else:
        _print(table, narration, files)
    return 0 if table.finished else 1


def _say(message: str) -> None:
    sys.stderr.write(f"kvplan: {message}\n")


def _print(table: StudyTable, narration: Mapping[str, Sequence[str]], files: Sequence[Path]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if len(table.rows) <= _MOST_SHOWN:
        console.print(points_table(table))
        console.print()
    for heading, sentences in narration.items():
        console.print(heading, style="bold")
        for sentence in sentences:
            console.print(f"- {sentence}")
        console.print()
    for path in files:
        console.print(str(path), soft_wrap=True)
