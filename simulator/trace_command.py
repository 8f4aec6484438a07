"""`kvplan trace`: a trace described as a table and a picture."""

import dataclasses
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError
from workloads import (
    LengthStats,
    SessionsDescription,
    Spread,
    TraceDescription,
    describe,
    describe_sessions,
    holds_sessions,
    read_sessions,
    read_trace,
)

__all__ = ["describe_trace"]


def describe_trace(file: Path, block_size: int, out: Path | None, *, as_json: bool) -> None:
    """Print what is in a trace and draw it next to it. Raises TraceError and ScenarioError, one line each.

    Sessions have no times of arrival to draw: they are printed only.
    """
    if block_size < 1:
        raise ScenarioError(f"--block-size: must be at least 1 token, got {block_size}")
    if holds_sessions(file):
        if out is not None:
            raise ScenarioError("--out: sessions have no times of arrival, so there is no picture of them")
        sessions = describe_sessions(read_sessions(file), block_size)
        _print(sessions.name, _session_rows(sessions), dataclasses.asdict(sessions) if as_json else None)
        return
    description = describe(read_trace(file, as_written=True), block_size)
    picture = out or Path(f"{description.name}.png")
    _draw(description, picture)
    _print(description.name, _rows(description), _plain(description) if as_json else None)
    if as_json:
        return
    console = Console()
    for warning in description.warnings:
        console.print(f"! {warning}", style="yellow", highlight=False)
    console.print(f"Picture: {picture}", highlight=False)


def _print(name: str, rows: list[tuple[str, str]], plain: dict[str, object] | None) -> None:
    """A table of the rows, or the plain values as JSON."""
    if plain is not None:
        Console(soft_wrap=True).print_json(json.dumps(plain), highlight=False)
        return
    table = Table(title=name, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for what, value in rows:
        table.add_row(what, value)
    Console().print(table)


def _draw(description: TraceDescription, picture: Path) -> None:
    from simulator.plots_trace import draw_trace

    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_whole(picture, lambda path: draw_trace(description, path))
    except OSError as error:
        raise ScenarioError(f"--out: {picture} cannot be written: {error.strerror}") from None


def _rows(description: TraceDescription) -> list[tuple[str, str]]:
    return [
        ("Requests", f"{description.num_requests:,}"),
        ("Span", f"{description.span_s:,.1f} s"),
        ("Rate", f"{description.rate_per_s:.3g} requests/s"),
        ("Burstiness", f"{description.interarrival_cv:.2f} (deviation of the gaps over their mean; Poisson: 1)"),
        ("Prompt tokens", _lengths(description.prompt)),
        ("Output tokens", _lengths(description.output)),
        ("Ideal prefix hits", _hits(description)),
    ]


def _session_rows(description: SessionsDescription) -> list[tuple[str, str]]:
    subagents = (
        f"{description.num_subagents:,} with {description.num_subagent_calls:,} calls;"
        f" {description.num_subagents_beside:,} run beside what follows, the others are waited for"
    )
    return [
        ("Sessions", f"{description.num_sessions:,}"),
        ("Calls", f"{description.num_calls:,}"),
        ("Sub-agents", subagents if description.num_subagents else "0"),
        ("Calls of a session", _lengths(description.calls_per_session)),
        ("Prompt tokens", _lengths(description.prompt_tokens)),
        ("Output tokens", _lengths(description.output_tokens)),
        ("Think time (s)", _lengths(description.think_time_s)),
        ("Ideal prefix hits", f"{_hits(description)}, each session alone"),
    ]


def _hits(description: TraceDescription | SessionsDescription) -> str:
    if description.ideal_hit_tokens is None or description.ideal_hit_ratio is None:
        return "the trace says nothing about prefixes"
    return (
        f"{description.ideal_hit_ratio:.1%} ({description.ideal_hit_tokens:,} of"
        f" {description.prompt_tokens_total:,} prompt tokens, blocks of {description.block_size})"
    )


def _lengths(lengths: LengthStats | Spread) -> str:
    return (
        f"mean {lengths.mean:,.0f}, p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f},"
        f" p99 {lengths.p99:,.0f}, max {lengths.max:,.0f}"
    )


def _plain(description: TraceDescription) -> dict[str, object]:
    """The figures, without the series of the picture."""
    figures = dataclasses.asdict(description)
    return {name: value for name, value in figures.items() if not _is_series(value)}


def _is_series(value: object) -> bool:
    return isinstance(value, np.ndarray) or (isinstance(value, dict) and "edges" in value)
