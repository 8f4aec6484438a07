"""What `kvplan waste` found, as files: tables as CSV, a report as HTML that needs nothing else, and one as Markdown."""

import csv
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from kvcache.ledger import LEDGER_PARTS
from kvcache.waste import WASTE_CAUSES
from simulator.grouping_study import GroupingStudy
from simulator.plots import as_png, as_svg
from simulator.plots_study import bars_inches, draw_causes, draw_ledgers, ledgers_inches
from simulator.plots_waste import heat_map
from simulator.report import inline_svg, render_page
from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError
from simulator.static_waste import ModelWaste
from simulator.study_words import COLUMNS, cells, remarks, verdict
from simulator.waste_words import padding_ranking

__all__ = ["WasteReport", "write_waste"]

_STATIC_COLUMNS = (
    "model", "policy", "request_tokens", "groups", "group_size", "padding_slots", "pool_bytes", "wasted_pct"
)  # fmt: skip
_REPLAY_COLUMNS = ("model", "policy", "trace", "groups", "padding_slots", "pool_bytes", "wasted_pct", "wasted_pct_max")
_MEASURES = {
    "prefix_cache_hit_rate": ("prefix_cache_hit_rate",),
    "preemptions": ("preemptions", "total"),
    "running_mean": ("running", "mean"),
    "running_max": ("running", "max"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "finished": ("requests", "finished"),
    "rejected": ("requests", "rejected"),
    "makespan_s": ("makespan_s",),
}
"""Column and where it is in a run's summary."""
_FIGURES = {
    "waste": (
        "What one request wastes",
        "Percent of what it holds while it decodes; a dash where a policy refuses the layers or a model is too short.",
    ),
    "ledger": (
        "Where the pool's bytes are over time",
        "One panel for each different run, with one scale of time and of bytes. Sampled.",
    ),
    "causes": (
        "What requests hold and nobody needs",
        "By cause, the mean over the samples of each run.",
    ),
}
"""Title and caption of each."""


@dataclass(frozen=True)
class WasteReport:
    """What there is to tell."""

    wastes: Sequence[ModelWaste]
    threshold_pct: float
    study: GroupingStudy | None = None
    lengths_in_words: str = "Lengths of requests, in tokens."

    @property
    def title(self) -> str:
        """Of the report."""
        what = self.wastes[0].model.name if len(self.wastes) == 1 else f"{len(self.wastes)} models"
        return f"What groupings waste: {what}" + (f" under {self.study.trace}" if self.study else "")

    def draws(self) -> bool:
        """Whether there are runs to draw."""
        return self.study is not None and any(len(run.samples["start_s"]) for run in self.study.runs.values())

    def sentences(self) -> list[str]:
        """The verdict on the replays."""
        return [] if self.study is None else list(verdict(self.study, self.threshold_pct))


def write_waste(report: WasteReport, folder: Path) -> list[Path]:
    """Write tables, pictures and reports into `folder`, each whole; gives back what was written.

    Raises ScenarioError where that cannot be done.
    """
    pictures = {"waste": heat_map(report.wastes)}
    contents: dict[str, bytes] = {"waste.csv": _static_csv(report.wastes).encode()}
    if report.study is not None:
        contents["replays.csv"] = _replays_csv(report.study).encode()
        if report.draws():
            pictures["ledger"] = as_png(partial(draw_ledgers, report.study), ledgers_inches(report.study))
            pictures["causes"] = as_png(partial(draw_causes, report.study), bars_inches(report.study))
    contents |= {f"{name}.png": picture for name, picture in pictures.items()}
    contents["waste.md"] = _markdown(report, list(pictures)).encode()
    contents["waste.html"] = _html(report, pictures["waste"]).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_whole(folder / name, lambda file, content=content: file.write_bytes(content))  # type: ignore[misc]
    except OSError as error:
        raise ScenarioError(f"--out: {folder} cannot be written: {error.strerror}") from None
    return [folder / name for name in contents]


# Tables.


def _static_csv(wastes: Sequence[ModelWaste]) -> str:
    rows = [row for waste in wastes for row in waste.rows()]
    parts = ("needed", *WASTE_CAUSES)
    heading = [*_STATIC_COLUMNS, *(f"{part}_bytes" for part in parts), "refused"]
    return _csv(heading, ([*map(row.get, _STATIC_COLUMNS), *_parts(row, parts), row["refused"]] for row in rows))


def _replays_csv(study: GroupingStudy) -> str:
    heading = [*_REPLAY_COLUMNS, *_MEASURES, *(f"{part}_bytes" for part in LEDGER_PARTS), "same_as", "refused"]
    return _csv(
        heading,
        (
            [
                *map(row.get, _REPLAY_COLUMNS),
                *(_measure(row["summary"], keys) for keys in _MEASURES.values()),
                *_parts(row, tuple(LEDGER_PARTS)),
                row["same_as"],
                row["refused"],
            ]
            for row in study.rows()
        ),
    )


def _parts(row: dict[str, Any], parts: Sequence[str]) -> list[int | None]:
    return [(row["ledger"] or {}).get(part) for part in parts]


def _measure(summary: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        summary = None if summary is None else summary[key]
    return summary


def _csv(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue()


def _static_tables(wastes: Sequence[ModelWaste]) -> list[tuple[str, list[str], list[list[str]], list[str]]]:
    """(model, heading, rows, refusals) of each model that can be grouped in several ways, or of the only one."""
    tables = []
    for waste in (waste for waste in wastes if waste.is_hybrid or len(wastes) == 1):
        heading = ["Grouping", "Groups", "Size", "Padding", *(f"{length:,}" for length in waste.lengths)]
        rows = [
            [
                name, f"{len(grouped.groups)}", f"{grouped.group_size}", f"{grouped.num_padding_layers}",
                *(f"{abs(grouped.waste(length).wasted_pct):.1f}%" for length in waste.lengths),
            ]
            for name, grouped in waste.grouped.items()
        ]  # fmt: skip
        refusals = [f"{name}: refused, {reason}" for name, reason in waste.refused.items()]
        tables.append((waste.model.name, heading, rows, refusals))
    return tables


def _replay_table(study: GroupingStudy) -> tuple[list[str], list[list[str]]]:
    return ["Grouping", *(heading.replace("- ", "") for heading in COLUMNS)], [
        [name, *cells(run)] for name, run in study.runs.items()
    ]


# Reports.


def _html(report: WasteReport, heat: bytes) -> str:
    from markupsafe import Markup

    figures = {}
    if report.study is not None and report.draws():
        for name, draw, inches in (
            ("ledger", draw_ledgers, ledgers_inches(report.study)),
            ("causes", draw_causes, bars_inches(report.study)),
        ):
            figures[name] = Markup(inline_svg(name, as_svg(partial(draw, report.study), inches)))
    return render_page(
        "waste.html.j2",
        title=report.title,
        sentences=report.sentences(),
        ranking=padding_ranking(report.wastes, report.threshold_pct),
        lengths=report.lengths_in_words,
        replays=None if report.study is None else _replay_table(report.study),
        remarks=[] if report.study is None else list(remarks(report.study)),
        figures=[(*_FIGURES[name], figure) for name, figure in figures.items()],
        heat=(*_FIGURES["waste"], b64encode(heat).decode()),
        tables=_static_tables(report.wastes),
    )


def _markdown(report: WasteReport, pictures: Sequence[str]) -> str:
    lines = [f"# {report.title}", ""]
    if report.study is not None:
        lines += ["## The trace under each grouping", "", *(f"- {sentence}" for sentence in report.sentences()), ""]
        lines += [*_markdown_table(*_replay_table(report.study)), ""]
        lines += [*(f"- {remark}" for remark in remarks(report.study)), ""]
        lines += _markdown_pictures(name for name in pictures if name != "waste")
    lines += ["## One request", "", report.lengths_in_words, ""]
    first, *ranked = padding_ranking(report.wastes, report.threshold_pct)
    lines += [first, "", *(f"{' '.join(line.split())}" for line in ranked), ""]
    lines += _markdown_pictures(["waste"])
    for model, heading, rows, refusals in _static_tables(report.wastes):
        lines += [f"### {model}", "", *_markdown_table(heading, rows), "", *refusals, *([""] if refusals else [])]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return [f"| {' | '.join(cells_of)} |" for cells_of in (heading, rule, *rows)]


def _markdown_pictures(names: Iterable[str]) -> list[str]:
    return [line for name in names for line in (f"![{_FIGURES[name][0]}]({name}.png)", "", _FIGURES[name][1], "")]
