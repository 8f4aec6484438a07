"""Measured memory in words: what a pool was predicted to take, and what it took."""

from collections.abc import Mapping
from typing import Any

from simulator.summary_table import format_bytes, format_share

__all__ = ["measured_lines"]

READINGS = {
    "allocated_bytes": "Allocated by torch",
    "reserved_bytes": "Reserved by torch",
    "peak_allocated_bytes": "Peak allocated by torch",
    "resident_bytes": "Resident set of the process",
    "device_free_bytes": "Free on the device",
}


def measured_lines(measured: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """(what, how much) of what `backing.Backing.measured` gave; nothing if nothing was."""
    if measured is None:
        return []
    fraction = measured["pool_fraction"]
    lines = [
        ("Device", measured["device"]),
        ("Predicted", _exact(measured["predicted_bytes"])),
    ]
    if fraction < 1:
        lines.append(
            ("Scaled", f"pages are 1/{round(1 / fraction)} of their size; blocks and tables are the run's own")
        )
    lines.append(("Allocated", f"{_exact(measured['storage_bytes'])}, {_difference(measured)}"))
    for row in measured["buffers"]:
        rounded = row["reserved"] - row["requested"]
        size = _exact(row["requested"])
        lines.append((f"Buffers of {format_bytes(row['requested'])}", f"{size}, rounded up by {rounded:,} if alone"))
    for name, what in READINGS.items():
        readings = [measured[when][name] for when in ("before", "allocated", "after") if name in measured[when]]
        if readings:
            lines.append((what, " → ".join(map(format_bytes, readings)) + " (before, with the pool, after the run)"))
    share = measured["touched_bytes"] / measured["storage_bytes"] if measured["storage_bytes"] else 0
    lines.append(("Blocks ever written", f"{measured['touched_blocks']:,} blocks, {format_share(share)} of the pool"))
    marks = f"{measured['marks_written']:,} and {measured['marks_read']:,}, all right"
    lines.append(("Marks written and read", f"{marks}; a token's in 1 of {measured['layers_per_mark']} layers"))
    if measured["bandwidth"]:
        lines.append(("Copied per second", format_bytes(measured["bandwidth"]["copy_bytes_per_s"])))
        for size, rate in measured["bandwidth"]["gather_bytes_per_s"].items():
            lines.append((f"Gathered per second, blocks of {size} tokens", format_bytes(rate)))
    return lines


def _exact(num_bytes: int) -> str:
    return f"{format_bytes(num_bytes)} ({num_bytes:,} bytes)"


def _difference(measured: Mapping[str, Any]) -> str:
    more = measured["storage_bytes"] - measured["backed_bytes"]
    return "to the byte" if not more else f"{more:+,} bytes"
