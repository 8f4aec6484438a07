"""The run folder: summary.json, requests.parquet, steps.parquet and report.html, each written whole or not at all."""

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from simulator.result import Result
from simulator.scenario import Scenario, ScenarioError
from simulator.table import write_parquet

__all__ = ["check_folder", "default_folder", "write_run", "write_whole"]


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
