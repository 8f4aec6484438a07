"""What kernels of vLLM reach of a GPU's peaks: where the table in `simulator/efficiencies.py` is from.

python -m benchmarks.efficiencies [GPU ...]      (needs the extra: pip install "kvplan[silicon]")

Reads the measured times that PyPI aiconfigurator-core ships, and fits to each kind of kernel

    time = start + norm of (arithmetic / (share of peak), reading / (share of bandwidth))

with the least relative error. The norm's order is `Efficiencies.matmul_overlap`; the one that fits best is printed.
"""

import sys
from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.tables import print_table
from models_configs.quantization import Compute
from simulator.hardware import Gpu, find_gpu
from simulator.silicon import SYSTEMS, NoKernelsError, measured_table

Floats = NDArray[np.float64]

BYTES = {"bfloat16": 2, "fp8": 1, "fp8_block": 1, "nvfp4": 9 / 16, "int4_wo": 0.52}
"""Of a weight, its scale included, by the package's names of formats; 17 / 32 for those of MXFP4."""
UNITS: dict[str, Compute] = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "w4a8_mxfp4_mxfp8": "mxfp8"}
"""That multiply; those of 16 bits where it says nothing."""
OVERLAP = 2.0
OVERLAPS = (1.0, 1.5, 2.0, 3.0, 4.0, inf)
LITTLE_BYTES, CACHED_BYTES = 2**20, 2**28
"""KV of which reading takes no time, and KV that no cache holds: repeated measurements read what lies in between from a
cache."""
MS = 1e-3
WIDTHS, MANY = (4096, 16_384), (2048, 4096, 8192)
ROUNDS = 40


class Matmuls(NamedTuple):
    """Measured times of one kind of matrix product: [cases] each."""

    compute_s: Floats
    """At the peak."""
    reading_s: Floats
    """Of the weights, at the full bandwidth."""
    measured_s: Floats


class Fit(NamedTuple):
    compute: float
    bandwidth: float
    start_s: float
    error: float
    """The median."""


def main() -> None:
    """Print a table for each kind of kernel."""
    gpus = [find_gpu(name) for name in sys.argv[1:] or sorted(SYSTEMS)]
    for title, rows_of in (
        ("Matrix products (4,096 to 16,384 wide and high, 1 to 8,192 tokens)", gemm_rows),
        ("Routed experts (256 to 1,024 wide on a rank, 1 to 16,384 tokens)", expert_rows),
        ("Attention of prompts (8 to 64 heads of one rank)", prefill_rows),
        ("Attention of decodes", decode_rows),
        ("All-reduce within CUDA graphs", all_reduce_rows),
    ):
        print(f"{title}:\n")
        rows = [row for gpu in gpus for row in known(rows_of, gpu)]
        print_table([tuple(rows[0]), *(tuple(map(str, row.values())) for row in rows)] if rows else [])
        print()


def known(rows_of: Any, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """The rows of a GPU, if the package has such a table of it."""
    try:
        yield from rows_of(gpu)
    except NoKernelsError:
        return


def gemm_rows(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """One for each format of weights."""
    file, table = measured_table(gpu, "gemm", "gemm")
    table = table[table.n.between(*WIDTHS) & table.k.between(*WIDTHS) & (table.m <= 8192)]
    table = table.groupby(["gemm_dtype", "m", "n", "k"], as_index=False).latency.min()
    for weights, rows in table.groupby("gemm_dtype"):
        if weights != "fp8_block":  # small ones take several times what servers need (see `simulator.silicon`)
            products = matmuls(gpu, str(weights), rows.m * rows.n * rows.k, rows.n * rows.k, rows.latency)
            reached = (products.compute_s / products.measured_s)[rows.m.isin(MANY)]
            many = {"share with 2,048 to 8,192 tokens": f"{np.median(reached):.2f}"}
            yield fitted_row(gpu, str(weights), products, file, many)


def expert_rows(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """One for each format and kernel."""
    file, table = measured_table(gpu, "moe", "moe")
    table = table.assign(width=table.inter_size // table.moe_tp_size)
    table = table[
        (table.moe_ep_size == 1) & (table.num_experts >= 32) & (table.topk >= 4) & (table.hidden_size >= 2048)
    ]
    table = table[table.width.between(256, 1024) & (table.num_tokens <= 16_384)]
    table = table[table.distribution != "power_law_1.2"]
    for (weights, kernel, choices), rows in table.groupby(["moe_dtype", "kernel_source", "distribution"]):
        expert = 3.0 * rows.hidden_size * rows.width
        hit = rows.num_experts * (1 - (1 - rows.topk / rows.num_experts) ** rows.num_tokens)  # as the roofline has it
        products = matmuls(gpu, str(weights), rows.num_tokens * rows.topk * expert, hit * expert, rows.latency)
        more = {"choices": str(choices), "kernel": str(kernel).removeprefix("vllm_")}
        yield fitted_row(gpu, str(weights), products, file, more)


def matmuls(gpu: Gpu, weights: str, products: Any, num_read: Any, latency_ms: Any) -> Matmuls:
    """Of so many multiplications and weights read: [cases] each."""
    bytes_per_weight = BYTES.get(weights, 17 / 32)
    return Matmuls(
        2.0 * np.asarray(products, float) / gpu.flops_per_s(UNITS.get(weights, "bf16")),
        bytes_per_weight * np.asarray(num_read, float) / gpu.bandwidth_bytes_per_s,
        MS * np.asarray(latency_ms, float),
    )


def fitted_row(gpu: Gpu, weights: str, products: Matmuls, file: str, more: dict[str, str]) -> dict[str, Any]:
    """The fit with the overlap that is the default, and which overlap fits best."""
    fits = {overlap: fit(products, overlap) for overlap in OVERLAPS}
    taken, best = fits[OVERLAP], min(OVERLAPS, key=lambda overlap: fits[overlap].error)
    return {
        "GPU": gpu.name,
        "weights": weights,
        **more,
        "share of peak": f"{taken.compute:.2f}",
        "of bandwidth": f"{taken.bandwidth:.2f}",
        "start": f"{1e6 * taken.start_s:.0f} µs",
        "median error": f"{taken.error:.0%}",
        "best overlap": f"{best:g} ({fits[best].error:.0%})",
        "without": f"{fits[inf].error:.0%}",
        "cases": len(products.measured_s),
        "table": file,
    }


def fit(products: Matmuls, overlap: float) -> Fit:
    """Gauss-Newton on the logarithms of times and of the three figures, damped."""
    figures = np.log([0.5, 0.7, 5e-6])
    gap = residuals(products, figures, overlap)
    damping = 1.0
    for _ in range(ROUNDS):
        slopes = np.stack([(residuals(products, figures + step, overlap) - gap) / 1e-5 for step in 1e-5 * np.eye(3)], 1)
        # what is far off counts less: some kernels were measured while the next was being compiled
        weights = 1 / np.sqrt(1 + (gap / 0.1) ** 2)
        normal = slopes.T @ (weights[:, None] * slopes) + damping * np.eye(3)
        moved = figures - np.linalg.solve(normal, slopes.T @ (weights * gap))
        nearer = residuals(products, moved, overlap)
        if cost(nearer) < cost(gap):
            figures, gap, damping = moved, nearer, damping / 10
        else:
            damping *= 10
    compute, bandwidth, start_s = np.exp(figures)
    return Fit(float(compute), float(bandwidth), float(start_s), float(np.median(np.abs(np.expm1(gap)))))


def residuals(products: Matmuls, figures: Floats, overlap: float) -> Floats:
    """Logarithms of what a fit says over what was measured: [cases]."""
    compute, bandwidth, start_s = np.exp(figures)
    longer = np.maximum(products.compute_s / compute, products.reading_s / bandwidth)
    shorter = np.minimum(products.compute_s / compute, products.reading_s / bandwidth)
    together: Floats = longer if overlap == inf else longer * (1 + (shorter / longer) ** overlap) ** (1 / overlap)
    gap: Floats = np.log((start_s + together) / products.measured_s)
    return gap


def cost(gap: Floats) -> float:
    return float(np.sum(np.sqrt(1 + (gap / 0.1) ** 2) - 1))


def prefill_rows(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """By elements of a head. Arithmetic is that of pairs, and of so many pairs more for each token."""
    file, table = measured_table(gpu, "attention", "context_attention")
    table = with_windows(table)
    table = table[(table.step == 0) & table.num_heads.between(8, 64) & (table.kv_cache_dtype == "bfloat16")]
    for head, rows in table[table.isl >= 256].groupby("head_dim"):
        tokens = rows.isl.astype(float)
        window = np.minimum(rows.window_size.where(rows.window_size > 0, tokens), tokens)
        pairs = window * (window + 1) / 2 + (tokens - window) * window
        peak_s = 4.0 * rows.head_dim * rows.num_heads * rows.batch_size / gpu.bf16_flops_per_s
        start_s, pair, token = least_relative(MS * rows.latency, np.ones(len(rows)), peak_s * pairs, peak_s * tokens)
        yield {
            "GPU": gpu.name,
            "elements of a head": head,
            "share of peak": f"{1 / pair:.2f}",
            "pairs more for each token": f"{token / pair:.0f}",
            "start": f"{1e6 * start_s:.0f} µs",
            "cases": len(rows),
            "table": file,
        }


def decode_rows(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """By elements of a head, and how keys and values are stored."""
    file, table = measured_table(gpu, "attention", "generation_attention")
    table = with_windows(table)
    table = table[(table.window_size == 0) & table.num_heads.between(8, 64)]
    table = table[table.num_heads >= 4 * table.num_key_value_heads]
    for (head, dtype), rows in table[table.head_dim.isin([64, 128])].groupby(["head_dim", "kv_cache_dtype"]):
        element_bytes = 1 if dtype == "fp8" else 2
        token_bytes = 2.0 * rows.head_dim * rows.num_key_value_heads * element_bytes
        read_bytes = rows.batch_size * (rows.step + 1.0) * token_bytes
        kept = rows[(read_bytes < LITTLE_BYTES) | (read_bytes > CACHED_BYTES)]
        read_s = read_bytes[kept.index] / gpu.bandwidth_bytes_per_s
        start_s, read, request_s = least_relative(MS * kept.latency, np.ones(len(kept)), read_s, kept.batch_size)
        yield {
            "GPU": gpu.name,
            "elements of a head": head,
            "KV": dtype,
            "share of bandwidth": f"{1 / read:.2f}",
            "start": f"{1e6 * start_s:.0f} µs",
            "for each request": f"{1e6 * request_s:.3f} µs",
            "cases": len(kept),
            "table": file,
        }


def all_reduce_rows(gpu: Gpu) -> Iterator[dict[str, Any]]:
    """By ranks."""
    file, table = measured_table(gpu, "comm", "custom_allreduce")
    table = table[table.kernel_source.str.contains("graph") & (table.message_size <= 2**26)]
    for ranks, rows in table.groupby("num_gpus"):
        moved_bytes = 2.0 * (int(ranks) - 1) / int(ranks) * 2 * rows.message_size  # of 16-bit elements
        at_peak_s = moved_bytes / gpu.interconnect_bytes_per_s
        start_s, link = least_relative(MS * rows.latency, np.ones(len(rows)), at_peak_s)
        yield {
            "GPU": gpu.name,
            "ranks": ranks,
            "start": f"{1e6 * start_s:.1f} µs",
            "share of link": f"{1 / link:.2f}",
            "table": file,
        }


def with_windows(table: pd.DataFrame) -> pd.DataFrame:
    """Older tables have no windows."""
    return table if "window_size" in table else table.assign(window_size=0)


def least_relative(times: Any, *parts: Any) -> Floats:
    """What each of the parts counts in their sum, with the least relative error: [parts], none negative."""
    columns = np.stack([np.asarray(part, float) for part in parts], 1) / np.asarray(times, float)[:, None]
    kept = np.arange(len(parts))
    while True:
        solved = np.linalg.lstsq(columns[:, kept], np.ones(len(columns)), rcond=None)[0]
        if (solved >= 0).all():
            counts = np.zeros(len(parts))
            counts[kept] = solved
            return counts
        kept = kept[solved >= 0]


if __name__ == "__main__":
    main()
