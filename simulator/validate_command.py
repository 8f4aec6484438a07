"""`kvplan validate`: replay what was measured on real servers, and print, write and draw how far off that is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from simulator.executors import executors_at
from simulator.plots import as_png
from simulator.progress import PointsProgress
from simulator.run_folder import check_folder, write_whole
from simulator.scenario import ScenarioError
from simulator.validation import plots_rtx4090, plots_sample
from simulator.validation.page import MEASURES, error_cells, measure_rows, rtx4090_section, sample_section, title
from simulator.validation.plots_rtx4090 import draw_series
from simulator.validation.plots_sample import draw_errors, draw_sample
from simulator.validation.rtx4090 import WAYS, Rtx4090Run, validate
from simulator.validation.sample_errors import group_errors, sample_table
from simulator.validation.sample_run import replay_points
from simulator.validation.silicon_sample import Point, Row, points_of, read_rows

__all__ = ["ValidateOptions", "run_validate"]


@dataclass(frozen=True)
class ValidateOptions:
    """What is replayed, and where it goes."""

    data: Path | None = None
    """Folder with `measured` and `traces`: the run on an RTX 4090."""
    step_times: Sequence[str] = ("silicon", "roofline")
    """Of the published sample."""
    every: int = 1
    """Only each so many-th point of the sample."""
    num_workers: int | None = None
    out: Path = Path("validation")


@dataclass
class _Page:
    """What goes into the folder."""

    folder: Path
    sections: list[str] = field(default_factory=lambda: [title()])
    files: list[Path] = field(default_factory=list)

    def write(self, name: str, content: bytes) -> str:
        """A file beside the page; gives back its name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / name, lambda path: path.write_bytes(content))
        self.files.append(self.folder / name)
        return name


def run_validate(options: ValidateOptions) -> None:
    """Raises ScenarioError where there is nothing to replay, or a flag is wrong."""
    if options.every < 1:
        raise ScenarioError(f"--every: must be at least 1, got {options.every}")
    check_folder(options.out)
    page, console = _Page(options.out), Console()
    sample = _sample(options, console)
    if options.data is not None:
        _replay_rtx4090(options.data, page, console)
    if sample is not None:
        for step_times in options.step_times:
            _replay_sample(sample, step_times, options, page, console)
    page.write("validation.md", "\n".join(page.sections).encode())
    for file in page.files:
        console.print(str(file), highlight=False)


def _sample(options: ValidateOptions, console: Console) -> tuple[dict[Point, list[Row]], Counter[str]] | None:
    """The published sample, if it is here."""
    try:
        points, left_out = points_of(read_rows())
    except FileNotFoundError:
        where = 'the published sample comes with pip install "kvplan[silicon]"'
        if options.data is None:
            raise ScenarioError(f"nothing to replay: {where}, the run on an RTX 4090 with --data") from None
        console.print(f"Left out: {where}.")
        return None
    return dict(sorted(points.items(), key=str)[:: options.every]), left_out


def _replay_rtx4090(data: Path, page: _Page, console: Console) -> None:
    run = Rtx4090Run(data)
    found = {}
    for name, step_times_of in WAYS.items():
        with console.status(f"RTX 4090: {name}"):
            found[name] = validate(run, step_times_of(run))
    shown = next(iter(found.values()))
    picture = page.write("rtx4090.png", as_png(partial(draw_series, shown), plots_rtx4090.HEIGHT_INCHES))
    page.sections.append(rtx4090_section(found, picture))
    table = Table("One run on an RTX 4090", "measured", *found, box=None, pad_edge=False)
    for row in measure_rows(found):
        table.add_row(*row)
    console.print(table)


def _replay_sample(
    sample: tuple[dict[Point, list[Row]], Counter[str]],
    step_times: str,
    options: ValidateOptions,
    page: _Page,
    console: Console,
) -> None:
    points, left_out = sample
    executors = executors_at(None, options.num_workers)
    with PointsProgress(f"with {step_times}", len(points), 0, shown=True) as progress:
        outcomes, refused = replay_points(points, step_times, executors, lambda done: progress.ended(has_finished=done))
    table = sample_table(points, outcomes)
    page.write(f"sample_{step_times}.csv", table.to_csv(index=False).encode())
    draws = {
        "Predicted over measured": ("sample", draw_sample),
        "Errors by requests in flight": ("errors", draw_errors),
    }
    pictures = [
        (text, page.write(f"{name}_{step_times}.png", as_png(partial(draw, table), plots_sample.HEIGHT_INCHES)))
        for text, (name, draw) in draws.items()
    ]
    reasons = Counter(reason for point, reason in refused.items() for _ in points[point])
    page.sections.append(sample_section(step_times, table, left_out, reasons, pictures))
    _print_errors(console, step_times, table)


def _print_errors(console: Console, step_times: str, table: pd.DataFrame) -> None:
    """Of the groups that are not one model."""
    shown = Table(f"Published sample, {step_times}", "rows", "median error", "p90", "bias", box=None, pad_edge=False)
    tested = table[~table["is_fitted_on"]]
    for measure, name in MEASURES:
        for group in group_errors(tested, measure)[:2]:
            shown.add_row(f"{name}, {group.name}", *error_cells(group))
    console.print(shown)
