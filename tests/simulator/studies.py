"""Studies for tests: files, and tables made up of figures instead of runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.executors import ThisProcess
from simulator.measures import MEASURES
from simulator.prices import Price, known_prices
from simulator.study_file import Study, StudyPoint, read_study
from simulator.study_run import run_points
from simulator.study_store import PointStore
from simulator.study_table import Row, StudyTable, tabulate

SMALL = """
[base]
model = "llama-3.1-8b"
gpu = "l40s"
max-model-len = 4096
num-requests = 4
[grid]
block-size = [16, 32]
max-num-seqs = [1, 2, 8]
"""
"""Six points that run in a moment."""


def write_study(folder: Path, text: str = SMALL, name: str = "study.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def study_of(folder: Path, text: str = SMALL) -> Study:
    return read_study(write_study(folder, text))


def table_of(study: Study, store: PointStore) -> StudyTable:
    """Run what the store does not have, in this process."""
    store.open()
    points = {each.point.key: each.point for each in study.points}
    outcomes, _ = store.load(points)

    def keep(key: str, outcome: dict[str, Any]) -> None:
        store.save(key, outcome)
        outcomes[key] = outcome

    run_points({key: point for key, point in points.items() if key not in outcomes}, ThisProcess(), keep)
    return tabulate(study, outcomes, known_prices())


ORDINARY = {
    "arrived": 10, "finished": 10, "rejected": 0, "output_tokens_per_s": 100.0, "ttft_p50_s": 0.1, "ttft_p99_s": 0.5,
    "tpot_p99_s": 0.02, "prefix_cache_hit_rate": 0.5, "kv_cache_usage_mean": 0.3, "preemptions": 0, "num_gpus": 1,
    "dollars_per_hour": 3.6, "dollars_per_million_output_tokens": 10.0, "gpu_hours_per_million_output_tokens": 2.8,
}  # fmt: skip
"""Measures of a made-up point."""


def made_up(
    axes: Mapping[str, tuple[Any, ...]],
    rows: list[tuple[Mapping[str, Any], Mapping[str, Any] | str]],
    *,
    is_grid: bool = True,
    slo: Mapping[str, float] | None = None,
    prices: Mapping[str, Price] | None = None,
    base: Mapping[str, Any] | None = None,
) -> StudyTable:
    """A table of points: settings, and figures that differ from `ORDINARY`, or the reason why it was refused.

    Among the figures can be `binding` and `meets_slo`.
    """
    points = tuple(StudyPoint({**(base or {}), **settings}, None) for settings, _ in rows)  # type: ignore[arg-type]
    study = Study("made-up", points, axes, is_grid, slo or {}, {})
    made = []
    for number, (point, (settings, said)) in enumerate(zip(points, rows, strict=True), 1):
        row = Row(number, study.label(point), settings, f"key{number}", "finished", None)
        if isinstance(said, str):
            made.append(Row(number, row.label, settings, row.key, "refused", said))
            continue
        figures = {**dict.fromkeys(measure.column for measure in MEASURES), **ORDINARY, "binding": "nothing", **said}
        binding, meets_slo = figures.pop("binding"), figures.pop("meets_slo", None)
        made.append(Row(number, row.label, settings, row.key, "finished", None, figures, binding, meets_slo))
    return StudyTable(study, tuple(made), prices or {})
