"""`kvplan calibrate`: fit a server's efficiencies, print how well they do, write them and draw it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from simulator.calibration import Fit, Floats, RooflineOf, Spans, fit_efficiencies
from simulator.calibration_file import Calibration, KindError, calibration_text
from simulator.calibration_logs import read_bench_result, read_request_stamps
from simulator.calibration_stamps import fit_to_stamps
from simulator.calibration_steps import read_steps
from simulator.deployment import deploy
from simulator.efficiencies import COSTS, PRICED, Efficiencies, efficiencies_of
from simulator.roofline import Roofline
from simulator.run_folder import write_whole
from simulator.scenario import Scenario, ScenarioError
from simulator.server import Server, plan_server

__all__ = ["errors_by_kind", "run_calibrate"]

OF_A_REPLAY = (
    "max_model_len", "gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "block_size",
    "enable_prefix_caching", "max_num_seqs", "max_num_batched_tokens", "async_scheduling",
)  # fmt: skip
"""Settings that say how requests share steps: steps that were measured one by one need none of them."""


@dataclass(frozen=True, eq=False)
class _Found:
    """A fit, and what it was fitted to."""

    start: Efficiencies
    """Those of the server as it comes: what the measurements do not tell stays at these."""
    fit: Fit
    spans: Spans
    measured: Literal["steps", "request stamps"]
    notes: list[str]


def run_calibrate(file: Path, settings: dict[str, Any], first: int | None, out: Path, *, as_json: bool) -> None:
    """Fit, write, draw and print. Raises ScenarioError and what `plan_server` raises, one line each."""
    if out.suffix != ".toml":
        raise ScenarioError(f"--out: must name a file that ends in .toml, got {str(out)!r}")
    if first is not None and first < 1:
        raise ScenarioError(f"--first: must be at least 1 request, got {first}")
    scenario = Scenario(**settings)
    if scenario.gpu is None:
        raise ScenarioError("--gpu: is needed: efficiencies are parts of its peaks")
    server = plan_server(scenario)
    found = _found(file, scenario, server, first)
    calibration = _calibration(file, scenario, server, found)
    _write(out, calibration, found)
    if as_json:
        figures = {**calibration.model_dump(mode="json"), "notes": found.notes}
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
        return
    _print(calibration, found, [out, out.with_suffix(".png")])


def errors_by_kind(spans: Spans, predicted_s: Floats) -> tuple[KindError, ...]:
    """How far predictions are off, for each kind of measurement."""
    kinds, errors = np.array(spans.kinds), predicted_s / spans.measured_s - 1
    return tuple(_kind_error(name, errors[kinds == name]) for name in dict.fromkeys(spans.kinds))


def _kind_error(kind: str, errors: Floats) -> KindError:
    sizes = np.abs(errors)
    return KindError(
        kind=kind,
        num_rows=len(errors),
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(errors)),
    )


def _found(file: Path, scenario: Scenario, server: Server, first: int | None) -> _Found:
    assert server.gpu is not None
    roofline_of: RooflineOf = partial(
        Roofline, server.model, server.gpu, scenario.tensor_parallel_size, scenario.kv_cache_dtype
    )
    start = efficiencies_of(server.gpu, async_scheduling=scenario.async_scheduling)
    if file.suffix == ".csv":
        _refuse_replay_settings(scenario, first)
        spans = read_steps(file, server.model)
        fit = fit_efficiencies(roofline_of, spans, start)
        return _Found(start, fit, spans, "steps", _notes(fit))
    readers = {".jsonl": read_request_stamps, ".json": read_bench_result}
    if file.suffix not in readers:
        raise ScenarioError(f"{file}: must end in .csv (steps), .jsonl (request stamps) or .json (vllm bench serve)")
    run = readers[file.suffix](file)
    stamps = fit_to_stamps(deploy(scenario), run.trace(file.name), run.first(first), roofline_of, start)
    notes = _notes(stamps.fit)
    if not stamps.has_settled:
        notes.append(f"replay and fit did not settle in {stamps.num_rounds} rounds: do the server's flags fit?")
    return _Found(start, stamps.fit, stamps.spans, "request stamps", notes)


def _refuse_replay_settings(scenario: Scenario, first: int | None) -> None:
    stated = [name for name in OF_A_REPLAY if getattr(scenario, name) != Scenario.model_fields[name].default]
    if first is not None or stated:
        flag = "first" if first is not None else stated[0].replace("_", "-")
        raise ScenarioError(f"--{flag}: goes with request stamps, which are replayed; steps stand for themselves")


def _notes(fit: Fit) -> list[str]:
    notes = [
        f"{name} came out at {getattr(fit.efficiencies, name):.2f}, above what the hardware can do: its peak, or the"
        " measurement, is doubtful"
        for name in fit.doubtful
    ]
    if len(fit.kept) == len(PRICED):
        notes.append("the measurements tell nothing: all figures are defaults")
    return notes


def _calibration(file: Path, scenario: Scenario, server: Server, found: _Found) -> Calibration:
    assert server.gpu is not None
    return Calibration(
        model=server.model.name,
        gpu=server.gpu.name,
        tensor_parallel_size=scenario.tensor_parallel_size,
        dtype=server.model.dtype,
        kv_cache_dtype=scenario.kv_cache_dtype,
        measured=found.measured,
        source=file.name,
        num_rows=len(found.spans.measured_s),
        date=date.today(),
        errors=errors_by_kind(found.spans, found.fit.predicted_s),
        fitted=tuple(name for name in PRICED if name not in found.fit.kept),
        efficiencies=found.fit.efficiencies,
    )


def _write(out: Path, calibration: Calibration, found: _Found) -> None:
    from simulator.plots import as_png
    from simulator.plots_calibration import HEIGHT_INCHES, draw_fit

    picture = as_png(partial(draw_fit, found.spans, found.fit.predicted_s), HEIGHT_INCHES)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out.with_suffix(".png"), lambda path: path.write_bytes(picture))
        write_whole(out, lambda path: path.write_text(calibration_text(calibration), encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"--out: {out} cannot be written: {error.strerror}") from None


# What is printed.


def _print(calibration: Calibration, found: _Found, files: Sequence[Path]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"{calibration.model} on {calibration.gpu}, from {calibration.num_rows:,} spans of {found.measured}")
    console.print()
    errors = _table(f"Error of {found.measured}", "Rows", "Median", "p90", "Bias")
    for error in calibration.errors:
        errors.add_row(
            error.kind, f"{error.num_rows:,}", f"{error.median:.1%}", f"{error.p90:.1%}", f"{error.bias:+.1%}"
        )
    console.print(errors)
    console.print()
    table = _table("Efficiency", "Default", "Here")
    table.add_column("")
    for name in PRICED:
        value = _shown(name, calibration.efficiencies)
        why = found.fit.kept.get(name)
        table.add_row(name, _shown(name, found.start), "" if why else value, f"kept: {why}" if why else "")
    table.add_row("matmul_overlap", *(f"{each.matmul_overlap:g}" for each in (found.start, calibration.efficiencies)))
    console.print(table)
    for note in found.notes:
        console.print(f"! {note}", style="yellow")
    console.print()
    for file in files:
        console.print(str(file))


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _shown(name: str, efficiencies: Efficiencies) -> str:
    value = getattr(efficiencies, name)
    return f"{1e6 * value:,.1f} µs" if name in COSTS else f"{value:.3f}"
