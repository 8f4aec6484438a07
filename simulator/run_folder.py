"""The run folder: summary.json, requests.parquet, steps.parquet and report.html, each written whole or not at all.

A fleet whose replicas come and go has a states.parquet besides.
Of a run with sessions there is sessions.parquet, too.
"""

import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from simulator.result import Result
from simulator.scenario import Scenario, ScenarioError
from simulator.table import write_parquet

__all__ = ["check_folder", "default_folder", "read_requests", "read_summary", "write_run", "write_whole"]


WHOLE = ("scenario", "capacity")
"""Objects that a summary has."""


def default_folder(scenario: Scenario) -> Path:
    """Where a run goes that nobody named: runs/<model>-<time>."""
    name = scenario.model.rstrip("/").split("/")[-1].lower()
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def check_folder(folder: Path) -> None:
    """Raise ScenarioError where `folder` could not be made or written into; nothing is made yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ScenarioError(f"--out: {folder} cannot be made a folder: {there} is a file")
    if not os.access(there, os.W_OK):
        raise ScenarioError(f"--out: {folder} cannot be written into: no permission for {there}")


def write_run(result: Result, folder: Path, *, with_report: bool = True) -> Path:
    """Write a run's files into `folder` and give it back. Raises ScenarioError where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"--out: {folder} cannot be made a folder: {error.strerror}") from None
    try:
        _write_files(result, folder, with_report=with_report)
    except OSError as error:
        raise ScenarioError(f"--out: {error.filename or folder} cannot be written: {error.strerror}") from None
    return folder


def _write_files(result: Result, folder: Path, *, with_report: bool) -> None:
    summary = json.dumps(result.to_json(), indent=2) + "\n"
    write_whole(folder / "summary.json", lambda path: path.write_text(summary))
    write_whole(folder / "requests.parquet", lambda path: write_parquet(result.tables["requests"], path))
    write_whole(folder / "steps.parquet", lambda path: write_parquet(result.tables["steps"], path))
    if "states" in result.tables:
        write_whole(folder / "states.parquet", lambda path: write_parquet(result.tables["states"], path))
    sessions = dict(result.tables).get("sessions")
    if sessions is not None:
        write_whole(folder / "sessions.parquet", lambda path: write_parquet(sessions, path))
    if with_report:
        from simulator.report import write_report

        write_report(result, folder / "report.html")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, then rename it: nobody ever sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_summary(folder: Path) -> dict[str, Any]:
    """What `Result.to_json` said of the run. Raises ScenarioError where `folder` holds no whole run."""
    file = folder / "summary.json"
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{folder} is not a run folder: {file.name} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ScenarioError(f"{file} is damaged: it is not JSON") from None
    if not isinstance(summary, dict) or not all(isinstance(summary.get(name), dict) for name in WHOLE):
        raise ScenarioError(f"{file} is damaged: it does not say which scenario was run")
    return summary


def read_requests(folder: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of requests.parquet, None for null. Raises ScenarioError where they are not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / "requests.parquet"
    try:
        table = pq.read_table(file, columns=list(columns))
    except OSError as error:
        reason = error.strerror or "it is not a whole Parquet file"
        raise ScenarioError(f"{file} cannot be read: {reason}") from None
    except pa.ArrowInvalid:
        raise ScenarioError(f"{file} is damaged: it is not a whole Parquet file") from None
    if missing := [name for name in columns if name not in table.column_names]:
        raise ScenarioError(f"{file} is damaged: it has no column {missing[0]!r}")
    return {name: table.column(name).to_pylist() for name in columns}
