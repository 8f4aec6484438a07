"""`python -m benchmarks.witness`: how much slower a replay is with real memory behind its blocks.

python -m benchmarks.witness --azure TRACE.csv --mooncake TRACE.jsonl    with the public traces too

Each replay runs with and without, in turn, in processor time; pages are as thin as marks allow. The first touch of
memory counts.
"""

import argparse
import gc
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.timing import machine
from simulator import Scenario, simulate
from simulator.engine import workload_of
from workloads import Trace

H100 = {"gpu": "h100-80gb", "max_model_len": 32768, "seed": 0}
RUNS: dict[str, dict[str, Any]] = {
    "conversations, gemma-3-27b": {"model": "gemma-3-27b", "tensor_parallel_size": 2, "num_requests": 2000},
    "conversations, llama-3.1-8b": {"model": "llama-3.1-8b", "num_requests": 2000},
    "conversations, jamba-v0.1": {"model": "jamba-v0.1", "tensor_parallel_size": 4, "num_requests": 2000},
    "conversations, llama-4-scout": {"model": "llama-4-scout", "tensor_parallel_size": 4, "num_requests": 2000},
}
GEMMA = {"model": "gemma-3-27b", "tensor_parallel_size": 2}
TRACES = {
    "azure": [GEMMA | {"num_requests": 2000}],
    "mooncake": [GEMMA | {"num_requests": number, "max_model_len": 131072} for number in (300, 1000)],
}
THINNEST = {"gemma-3-27b": 1 / 256, "llama-3.1-8b": 1 / 256, "jamba-v0.1": 1 / 64, "llama-4-scout": 1 / 64}


def seconds(scenario: Scenario, trace: Trace) -> tuple[float, dict[str, Any] | None]:
    """(seconds that the processor spent on one replay, its measured memory)."""
    gc.collect()
    start = time.process_time()
    result = simulate(scenario, trace)
    return time.process_time() - start, result.measured_memory


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.witness", description=__doc__.splitlines()[0])
    parser.add_argument("--azure", type=Path, help="the Azure 2023 conversation trace")
    parser.add_argument("--mooncake", type=Path, help="the Mooncake conversation trace")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    runs = dict(RUNS)
    for name, of_trace in TRACES.items():
        if path := getattr(asked, name):
            for settings in of_trace:
                runs[f"{name} {settings['num_requests']:,}, {settings['model']}"] = settings | {"trace": path}
    print(f"Machine: {machine()}\n\n| replay | without | with | ratio | marks written | read | pool |\n{'|---' * 7}|")
    for name, of_run in runs.items():
        settings = H100 | of_run
        plain = Scenario(**settings)
        backed = Scenario(**settings, back_with="cpu", pool_fraction=THINNEST[plain.model])
        trace = workload_of(plain)
        pairs = []
        for _ in range(asked.repeats):
            (plain_s, _), (backed_s, measured) = seconds(plain, trace), seconds(backed, trace)
            assert measured is not None
            pairs.append((backed_s / plain_s, plain_s, backed_s))
        ratios = sorted(ratio for ratio, *_ in pairs)
        row = (
            name,
            f"{median(plain_s for _, plain_s, _ in pairs):.2f} s",
            f"{median(backed_s for *_, backed_s in pairs):.2f} s",
            f"{ratios[0]:.1f}, **{median(ratios):.1f}**, {ratios[-1]:.1f}",
            f"{measured['marks_written'] / 1e6:.1f} M",
            f"{measured['marks_read'] / 1e6:.1f} M",
            f"{measured['predicted_bytes'] / 2**30:.1f} GiB at 1/{round(1 / measured['pool_fraction'])}",
        )
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
