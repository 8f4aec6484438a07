"""`kvplan trace`: a trace described as a table and a picture."""

import dataclasses
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError
from workloads import LengthStats, TraceDescription, describe, read_trace

__all__ = ["describe_trace"]


def describe_trace(file: Path, block_size: int, out: Path | None, *, as_json: bool) -> None:
    """Print what is in a trace and draw it next to it. Raises TraceError and ScenarioError, one line each."""
    if block_size < 1:
        raise ScenarioError(f"--block-size: must be at least 1 token, got {block_size}")
    description = describe(read_trace(file, as_written=True), block_size)
    picture = out or Path(f"{description.name}.png")
    _draw(description, picture)
    if as_json:
        Console(soft_wrap=True).print_json(json.dumps(_plain(description)), highlight=False)
        return
    console = Console()
    table = Table(title=description.name, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in _rows(description):
        table.add_row(name, value)
    console.print(table)
    for warning in description.warnings:
        console.print(f"! {warning}", style="yellow", highlight=False)
    console.print(f"Picture: {picture}", highlight=False)


def _draw(description: TraceDescription, picture: Path) -> None:
    from simulator.plots_trace import draw_trace

    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_whole(picture, lambda path: draw_trace(description, path))
    except OSError as error:
        raise ScenarioError(f"--out: {picture} cannot be written: {error.strerror}") from None


def _rows(description: TraceDescription) -> list[tuple[str, str]]:
    hits = "the trace says nothing about prefixes"
    if description.ideal_hit_tokens is not None and description.ideal_hit_ratio is not None:
        hits = (
            f"{description.ideal_hit_ratio:.1%} ({description.ideal_hit_tokens:,} of"
            f" {description.prompt_tokens_total:,} prompt tokens, blocks of {description.block_size})"
        )
    return [
        ("Requests", f"{description.num_requests:,}"),
        ("Span", f"{description.span_s:,.1f} s"),
        ("Rate", f"{description.rate_per_s:.3g} requests/s"),
        ("Burstiness", f"{description.interarrival_cv:.2f} (deviation of the gaps over their mean; Poisson: 1)"),
        ("Prompt tokens", _lengths(description.prompt)),
        ("Output tokens", _lengths(description.output)),
        ("Ideal prefix hits", hits),
    ]


def _lengths(lengths: LengthStats) -> str:
    return (
        f"mean {lengths.mean:,.0f}, p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f},"
        f" p99 {lengths.p99:,.0f}, max {lengths.max:,}"
    )


def _plain(description: TraceDescription) -> dict[str, object]:
    """The figures, without the series of the picture."""
    figures = dataclasses.asdict(description)
    return {name: value for name, value in figures.items() if not _is_series(value)}


def _is_series(value: object) -> bool:
    return isinstance(value, np.ndarray) or (isinstance(value, dict) and "edges" in value)
