"""What an hour of an accelerator costs: a table with dates and sources (`prices.toml`); rows can be replaced."""

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulator.hardware import UnknownGpuError, find_gpu
from simulator.scenario import ScenarioError
from simulator.toml_file import is_number, read_toml

__all__ = ["Price", "known_prices", "prices_in", "read_prices"]

_KEYS = {"dollars_per_hour", "source", "date"}
EXAMPLE = "h100-80gb = 2.50"


@dataclass(frozen=True, slots=True)
class Price:
    """Of one accelerator."""

    dollars_per_hour: float
    source: str
    date: datetime.date | None = None
    """When it was read; None: nobody says."""

    def to_json(self) -> dict[str, Any]:
        """In plain JSON values."""
        date = None if self.date is None else str(self.date)
        return {"dollars_per_hour": self.dollars_per_hour, "source": self.source, "date": date}


@cache
def known_prices() -> Mapping[str, Price]:
    """By the accelerator's name in `simulator.hardware`; one that is not there has no known price."""
    return read_prices(Path(__file__).with_name("prices.toml"))


def read_prices(file: Path) -> dict[str, Price]:
    """The rows of a file like `prices.toml`. Raises ScenarioError with all mistakes, a line each."""
    prices, mistakes = prices_in(read_toml(file, "--prices"), file.name)
    if mistakes:
        raise ScenarioError("\n  ".join([f"--prices: {file} has mistakes:", *mistakes]))
    return prices


def prices_in(tables: object, place: str) -> tuple[dict[str, Price], list[str]]:
    """(prices by name, mistakes) of a table such as {"h200": 3.5} or {"h200": {"dollars_per_hour": 3.5, ...}}.

    `place` is what a mistake is said of, and the source of a price that names none.
    """
    if not isinstance(tables, Mapping):
        return {}, [f"{place}: must be a table such as {EXAMPLE}, got {tables!r}"]
    prices: dict[str, Price] = {}
    mistakes: list[str] = []
    for name, row in tables.items():
        here = f"{place} {name}"
        found = list(_mistakes_of(name, row, here))
        if found:
            mistakes += found
            continue
        fields = row if isinstance(row, Mapping) else {"dollars_per_hour": row}
        prices[find_gpu(name).name] = Price(
            float(fields["dollars_per_hour"]), fields.get("source", place), fields.get("date")
        )
    return prices, mistakes


def _mistakes_of(name: str, row: Any, here: str) -> Iterator[str]:
    try:
        find_gpu(name)
    except UnknownGpuError as error:
        yield f"{here}: {error}"
    fields = row if isinstance(row, Mapping) else {"dollars_per_hour": row}
    for key in fields.keys() - _KEYS:
        yield f"{here}: unknown key {key!r}; known: dollars_per_hour, source, date"
    dollars = fields.get("dollars_per_hour")
    if not is_number(dollars) or not 0 <= dollars < math.inf:
        yield f"{here}: must be dollars an hour, a number of at least 0, got {dollars!r}"
    if not isinstance(fields.get("source", ""), str):
        yield f"{here}: source must be text, got {fields['source']!r}"
    if not isinstance(fields.get("date", datetime.date.min), datetime.date):
        yield f"{here}: date must be a date such as 2026-09-25, got {fields['date']!r}"
