"""`kvplan compare`: two runs side by side, what differs in and what differs out."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from simulator.comparison import Comparison, Difference, MeasuredChange, compare
from simulator.prices import known_prices
from simulator.run_folder import read_summary
from simulator.scenario import ScenarioError
from simulator.study_settings import shown
from simulator.summary_table import format_bytes, format_number
from simulator.toml_file import is_number

__all__ = ["compare_runs"]

_NEEDED = ("requests", "throughput", "ttft_s", "kv_cache_usage", "running", "waiting", "preemptions", "steps")
_LEAST_SHOWN_PCT = 0.05
"""A smaller change is told as none."""


def compare_runs(first: Path, second: Path, *, as_json: bool) -> None:
    """Print what sets two run folders apart. Raises ScenarioError where one is none."""
    comparison = compare(_read(first), _read(second), known_prices())
    if as_json:
        sys.stdout.write(json.dumps({"runs": [str(first), str(second)], **comparison.to_json()}, indent=2) + "\n")
        return
    console = Console(highlight=False, markup=False, emoji=False)
    names = _names(first, second)
    _print_differences(console, "Settings", comparison.settings, names)
    _print_differences(console, "Capacity", comparison.capacity, names)
    _print_measures(console, comparison, names)


def _read(folder: Path) -> dict[str, Any]:
    summary = read_summary(folder)
    if missing := [name for name in _NEEDED if name not in summary]:
        raise ScenarioError(f"{folder / 'summary.json'} is damaged: it has no {missing[0]}")
    return summary


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Of the columns: the folders' own names, or all of the path where these are equal."""
    return (str(first), str(second)) if first.name == second.name else (first.name, second.name)


def _print_differences(console: Console, title: str, differences: Sequence[Difference], names: tuple[str, str]) -> None:
    if not differences:
        console.print(f"{title}: no difference")
        console.print()
        return
    table = _table(title, names)
    for each in differences:
        table.add_row(each.name, _in_words(each.name, each.first), _in_words(each.name, each.second))
    console.print(table)
    console.print()


def _print_measures(console: Console, comparison: Comparison, names: tuple[str, str]) -> None:
    table = _table("Measures", names)
    table.add_column("Change", justify="right")
    table.add_column("Better")
    for each in comparison.measures:
        better = {"first": names[0], "second": names[1]}.get(each.better or "", "")
        table.add_row(each.measure.title, *map(each.measure.text, (each.first, each.second)), _change(each), better)
    table.add_row("What seems to bind", *(binding.replace("_", " ") for binding in comparison.bindings), "", "")
    console.print(table)


def _table(title: str, names: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _in_words(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if "bytes" in name and isinstance(value, int):
        return format_bytes(value)
    return format_number(value) if is_number(value) else shown(value)


def _change(each: MeasuredChange) -> str:
    change = each.change_pct
    if change is None:
        return ""
    return "=" if abs(change) < _LEAST_SHOWN_PCT else f"{change:+,.1f}%".replace("-", "−")
