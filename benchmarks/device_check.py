"""`scripts/device_check`: does what the allocator says hold in a device's memory, and what does that memory take?

Three checks, and their table last: pools of real models with a witness in them while a trace replays; attention through
block tables against dense attention; how fast the device copies, and gathers pages. Nothing is downloaded.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvcache.layout import GIB
from kvcache.pages import copy_bytes_per_s, gather_bytes_per_s
from simulator import Scenario, simulate
from simulator.backing import GATHERED_BLOCK_SIZES
from simulator.hardware import find_gpu
from tests.conformance.record import FOLDER, read
from tests.simulator.attending import TOLERANCES
from tests.simulator.witnessed import replay_with_attention, replay_with_witness

MODELS = ("gemma-3-27b", "jamba-v0.1", "llama-4-scout")
ATTENTION = ("full-54", "full-chunked-sliding-26", "async-gemma3-49", "llama4-34", "mla-mamba-38", "async-jamba-51")
"""Recorded scenarios: every attention type, with preemptions, prefix hits and windows that are freed."""
EVERY_READ = ("full-sliding-mamba-75", "async-gemma3-40", "async-llama4-33", "async-mla-mamba-40", "uniform-type-78")
"""The same, replayed step by step, with all that a step attends to read back."""


@dataclass(frozen=True)
class Row:
    """One check."""

    what: str
    holds: bool
    figures: str


def pools(asked: argparse.Namespace) -> Iterator[Row]:
    """Pools of tens of GiB, written and read while a trace replays."""
    for model in MODELS:
        settings: dict[str, Any] = {
            "model": model,
            "kv_cache_memory_bytes": int(asked.gib * GIB),
            "max_model_len": 16384,
            "max_num_batched_tokens": 4096,
            "step_time_s": 0.02,
            "num_requests": asked.requests,
            "rate_scale": 4.0,
        }
        start = time.perf_counter()
        simulate(Scenario(**settings))
        plain_s, start = time.perf_counter() - start, time.perf_counter()
        result = simulate(Scenario(**settings, back_with=asked.device, pool_fraction=asked.fraction))
        backed_s, measured = time.perf_counter() - start, result.measured_memory
        assert measured is not None
        yield Row(
            f"{model}: witness", measured["marks_read"] > 0, witnessed(measured, result.summary, plain_s, backed_s)
        )
        yield Row(f"{model}: memory", *memory(measured))


def witnessed(measured: dict[str, Any], summary: dict[str, Any], plain_s: float, backed_s: float) -> str:
    """What was written and read, and what that cost."""
    return (
        f"{summary['steps']:,} steps, {summary['preemptions']['total']:,} preemptions,"
        f" {measured['marks_written']:,} marks written and {measured['marks_read']:,} read, all right;"
        f" {backed_s:.1f} s, {plain_s:.1f} s without"
    )


def memory(measured: dict[str, Any]) -> tuple[bool, str]:
    """(whether it is as predicted, the figures): to the byte on a CPU, up to 512 bytes by torch's allocator on CUDA."""
    before, after = measured["before"], measured["allocated"]
    parts = [f"{measured['backed_bytes'] / GIB:.3f} GiB predicted"]
    holds = measured["storage_bytes"] == measured["backed_bytes"]
    for name in ("allocated_bytes", "reserved_bytes"):
        if name in after:
            more = after[name] - before[name] - measured["backed_bytes"]
            holds &= 0 <= more < (512 if name == "allocated_bytes" else 2 << 20)
            parts.append(f"{name.removesuffix('_bytes')} {more:+,} bytes")
    taken = before["device_free_bytes"] - after["device_free_bytes"]
    parts.append(f"device's free memory {-taken / GIB:+.3f} GiB")
    rounding = max(row["reserved"] - row["requested"] for row in measured["buffers"])
    parts.append(f"{measured['num_buffers']} buffers, each alone rounded up by {rounding:,} bytes")
    parts.append(f"{measured['touched_bytes'] / measured['backed_bytes']:.0%} ever touched")
    return holds, ", ".join(parts)


def every_read(asked: argparse.Namespace) -> Iterator[Row]:
    """Recorded schedules of vLLM's, each step by itself."""
    for name in EVERY_READ:
        replayed = replay_with_witness(read(FOLDER / f"{name}.json.gz")["scenario"], device=asked.device)
        figures = f"{replayed.num_steps:,} steps, {replayed.pool.num_read:,} marks read, all right"
        yield Row(f"{name}: every read", replayed.pool.num_read > 0, figures)


def attention(asked: argparse.Namespace) -> Iterator[Row]:
    """Attention through block tables against dense attention."""
    for name in ATTENTION:
        scenario = read(FOLDER / f"{name}.json.gz")["scenario"]
        attending = replay_with_attention(scenario, asked.device)
        tolerance = TOLERANCES[scenario.get("dtype", "bfloat16")]
        worst = ", ".join(f"{kind} {error:.1e}" for kind, error in sorted(attending.errors.items()))
        figures = f"largest relative error: {worst} (tolerance {tolerance:g}, {attending.num_outputs:,} outputs)"
        yield Row(f"{name}: attention", max(attending.errors.values()) < tolerance, figures)


def bandwidth(asked: argparse.Namespace) -> Iterator[Row]:
    """How fast a device copies, and gathers pages of 4 KiB a token."""
    size = int(asked.bandwidth_gib * GIB)
    peak = None if asked.gpu is None else find_gpu(asked.gpu).bandwidth_bytes_per_s
    rates = {"copy, read and written": copy_bytes_per_s(asked.device, size)}
    for tokens in GATHERED_BLOCK_SIZES:
        rate = gather_bytes_per_s(asked.device, tokens * 4096, pool_bytes=size, read_bytes=size // 4)
        rates[f"gather, blocks of {tokens} tokens"] = rate
    for what, rate in rates.items():
        share = "" if peak is None else f", {rate / peak:.0%} of {asked.gpu}'s {peak / 1e9:,.0f} GB/s"
        yield Row(what, rate > 0, f"{rate / 1e9:,.0f} GB/s{share}")


def main() -> int:
    """Run all checks; 0 if all hold."""
    parser = argparse.ArgumentParser(prog="scripts/device_check", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gib", type=float, default=40, help="of each pool [40]")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the bytes behind each slot [1]")
    parser.add_argument("--requests", type=int, default=300, help="of each replay [300]")
    parser.add_argument("--bandwidth-gib", type=float, default=4, help="that are copied [4]")
    parser.add_argument("--gpu", help="whose data sheet to compare the bandwidth with: h200")
    asked = parser.parse_args()
    start, rows = time.perf_counter(), []
    for check in (bandwidth, pools, every_read, attention):
        for row in check(asked):
            print(f"{time.perf_counter() - start:6.1f} s  {row.what}", flush=True)
            rows.append(row)
    print("\n| check | holds | figures |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {'yes' if row.holds else 'NO'} | {row.figures} |")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
