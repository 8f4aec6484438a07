"""Figures that real servers printed at start, with what is known of their command lines.

Each was retyped from a public log into server_logs.json. docs/server_logs.md has the same rows in a table,
those that do not hold, and those that cannot be stated.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CONFIGS", "LOGS", "ServerLog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """One start of one server."""

    name: str
    printed: Mapping[str, int | float]
    """By the names of `figures` in test_server_logs.py."""
    model: str
    """In the catalogue, or in CONFIGS."""
    flags: Mapping[str, object] = field(default_factory=dict)
    source: str = "a public server log (GitHub)"
    version: str = ""
    """Of vLLM, or the day; empty where neither is known."""
    available_gib: float | None = None
    """Rounded to two decimals, as servers print it; None with neither it nor bytes: any number of blocks."""
    available_bytes: int | None = None
    ours: Mapping[str, int | float] | None = None
    """What kvplan says, where that differs."""
    note: str = ""
    """What was inferred, why a flag is what it is, why it does not hold."""


_DATA = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

CONFIGS: Mapping[str, Mapping[str, object]] = {name: entry["config"] for name, entry in _DATA["configs"].items()}
"""Models that the catalogue lacks: what their KV cache depends on, as their config.json has it (source beside it)."""

LOGS = tuple(ServerLog(**row) for row in _DATA["logs"])
