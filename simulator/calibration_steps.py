"""Read a CSV of measured steps: what each computed, and how long it took."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path

from models_configs import Model
from simulator.batch import Batch
from simulator.calibration import Spans
from simulator.scenario import ScenarioError

__all__ = ["COLUMNS", "read_steps"]

COUNTS = ("prefill_tokens", "decode_requests", "decode_context_tokens")
"""Columns that a file must have, of whole numbers."""
DEFAULTS = {"prefill_context_tokens": 0, "num_prefills": 1}
"""Columns that it may have."""
UNITS_S = {"seconds": 1.0, "ms": 1e-3}
"""Columns of which it must have one."""
COLUMNS = (*COUNTS, *DEFAULTS, *UNITS_S)


def read_steps(file: Path, model: Model) -> Spans:
    """The steps of a file, each a span. Raises ScenarioError with one line that says what is wrong where.

    Several prompts in a step are taken to be of one length, and so are the contexts of its decodes: of layers that see
    everything only their sums matter.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            unit = _check_header(file, reader.fieldnames or [])
            rows = [_step(_Row(file, number, row), unit, model) for number, row in enumerate(reader, start=1)]
    except OSError as error:
        raise ScenarioError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"{file} is not CSV: {error}") from None
    if not rows:
        raise ScenarioError(f"{file} holds no steps: a header, and nothing below it")
    batches, seconds = zip(*rows, strict=True)
    return Spans.of_steps(batches, seconds)


def _check_header(file: Path, names: Sequence[str]) -> str:
    """Which column says how long steps took."""
    for name in names:
        if name not in COLUMNS:
            near = get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COLUMNS)}"
            raise ScenarioError(f"{file}: unknown column {name!r}; {hint}")
    if missing := [name for name in COUNTS if name not in names]:
        raise ScenarioError(f"{file}: column {missing[0]} is missing (found: {', '.join(names) or 'none'})")
    units = [name for name in UNITS_S if name in names]
    if len(units) != 1:
        found = "both are there" if units else f"found: {', '.join(names)}"
        raise ScenarioError(f"{file}: needs a column seconds or ms, one of them ({found})")
    return units[0]


class _Row:
    """One row of the file, whose values are checked as they are asked for."""

    def __init__(self, file: Path, number: int, row: Mapping[str | None, object]) -> None:
        self._place = f"{file}, row {number:,}"
        self._row = row
        if None in row or None in row.values():
            raise self.error("has more values than the header" if None in row else "has fewer values than the header")

    def error(self, problem: str) -> ScenarioError:
        return ScenarioError(f"{self._place} {problem}")

    def count(self, name: str) -> int:
        text = str(self._row.get(name, DEFAULTS.get(name, "")))
        if not text.strip().isdecimal():
            raise self.error(f"column {name} must be a whole number, 0 or more, got {text!r}")
        return int(text)

    def seconds(self, unit: str) -> float:
        text = str(self._row[unit])
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < inf:
            raise self.error(f"column {unit} must be a positive number, got {text!r}")
        return value * UNITS_S[unit]


def _step(row: _Row, unit: str, model: Model) -> tuple[Batch, float]:
    prefill_tokens, num_decodes = row.count("prefill_tokens"), row.count("decode_requests")
    context_tokens = row.count("decode_context_tokens")
    if not prefill_tokens and not num_decodes:
        raise row.error("computes nothing: neither prefill_tokens nor decode_requests")
    if context_tokens and not num_decodes:
        raise row.error(f"has decode_context_tokens {context_tokens:,} without decode_requests")
    chunks: tuple[tuple[int, int], ...] = ()
    if prefill_tokens:
        num_prefills = row.count("num_prefills")
        if not 1 <= num_prefills <= prefill_tokens:
            raise row.error(
                f"column num_prefills must be 1 to prefill_tokens, {prefill_tokens:,}, got {num_prefills:,}"
            )
        before = _evenly(row.count("prefill_context_tokens"), num_prefills)
        chunks = tuple(zip(_evenly(prefill_tokens, num_prefills), before, strict=True))
    elif row.count("prefill_context_tokens"):
        raise row.error("has prefill_context_tokens without prefill_tokens")
    contexts = list(_evenly(context_tokens, num_decodes)) if num_decodes and model.reaches else []
    seen = tuple(sum(reach.seen_before(context) for context in contexts) for reach in model.reaches)
    return Batch(chunks, num_decodes, context_tokens, seen, (0,) * len(seen)), row.seconds(unit)


def _evenly(total: int, num_parts: int) -> Iterator[int]:
    """So many whole numbers that differ by one at most and add up to the total."""
    small, num_larger = divmod(total, num_parts)
    yield from (small + (part < num_larger) for part in range(num_parts))
