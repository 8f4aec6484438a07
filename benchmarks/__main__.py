"""`python -m benchmarks`: every figure once, as tables in Markdown.

python -m benchmarks                                      our own figures
python -m benchmarks --oracle-python PYTHON --oracle PATH  vLLM's scheduler too, in turn, with ratios
python -m benchmarks --mooncake TRACE.jsonl --azure TRACE.csv  with the public traces
scripts/compile && cd build/compiled && python -m benchmarks   the same, compiled
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.floor import floor_of
from benchmarks.scenarios import SHAPES, Scenario, mooncake_on_gemma3_27b, shared_documents
from benchmarks.tables import Row, print_table
from benchmarks.timing import OURS, kvplan, machine, run, speed_of


def main() -> None:
    """Run what was asked for and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--oracle-python", type=Path, help="an interpreter that has vLLM 0.32")
    parser.add_argument("--oracle", type=Path, help="a script that replays a scenario with vLLM's own scheduler")
    parser.add_argument("--mooncake", type=Path, help="the Mooncake conversation trace")
    parser.add_argument("--azure", type=Path, help="the Azure 2023 conversation trace")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("scheduler", "floor", "commands", "growth", "million"), nargs="*")
    arguments = parser.parse_args()
    print(f"Machine: {machine()}\n")
    parts = {
        "scheduler": lambda: scheduler_rows(arguments),
        "floor": floor_rows,
        "commands": lambda: command_rows(arguments),
        "growth": growth_rows,
        "million": million_rows,
    }
    for name in arguments.only or ("scheduler", "commands", "growth"):
        print_table(parts[name]())
        print()


def scheduler_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """The same schedules by us and by vLLM, in turn: requests per second (median) and the ratio pair by pair."""
    yield "schedule", "requests/s", "steps", "us per step", "vLLM requests/s", "ratio (min, median, max)"
    scenarios: dict[str, Scenario] = {f"shared documents, {shape}": shared_documents(shape) for shape in SHAPES}
    if arguments.mooncake:
        scenarios["Mooncake 2,000, gemma-3-27b tp2"] = mooncake_on_gemma3_27b(arguments.mooncake)
    theirs = [str(arguments.oracle_python), str(arguments.oracle), "speed"] if arguments.oracle else None
    with tempfile.TemporaryDirectory() as folder:
        for name, scenario in scenarios.items():
            path = Path(folder) / "scenario.json"
            path.write_text(json.dumps(scenario))
            yield scheduler_row(name, path, theirs, arguments.repeats)


def scheduler_row(name: str, path: Path, theirs: list[str] | None, repeats: int) -> Row:
    """One schedule, several times in turn. Raises AssertionError if the schedules differ in length."""
    ours, other, ratios = [], [], []
    steps = 0
    for _ in range(repeats):
        mine = speed_of(OURS, path)
        steps = mine["steps"]
        ours.append(mine["requests_per_second"])
        if theirs:
            vllm = speed_of(theirs, path)
            assert (vllm["steps"], vllm["scheduled_tokens"]) == (mine["steps"], mine["scheduled_tokens"])
            other.append(vllm["requests_per_second"])
            ratios.append(ours[-1] / other[-1])
    per_step_us = median(1e6 / (mine["steps_per_second"]) for mine in (mine,))
    spread = f"{min(ratios):.1f}, {median(ratios):.1f}, {max(ratios):.1f}" if ratios else "-"
    theirs_text = f"{median(other):,.0f}" if other else "-"
    return name, f"{median(ours):,.0f}", f"{steps:,}", f"{per_step_us:.0f}", theirs_text, spread


def floor_rows() -> Iterator[Row]:
    """What a schedule costs per request and per block, beside a pool that is a list and nothing else."""
    yield (
        "schedule",
        "us per request",
        "blocks taken or given back, per request",
        "us per block",
        "bare pool, us per request",
    )
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            path = Path(folder) / "scenario.json"
            path.write_text(json.dumps(shared_documents(shape)))
            seconds = min(speed_of(OURS, path)["seconds"] for _ in range(3))
            floor = floor_of(path)
            figures = (seconds * 1e3, floor["blocks"] / 1e3, seconds * 1e6 / floor["blocks"], floor["bare_s"] * 1e3)
            yield f"shared documents, {shape}", *(f"{figure:,.2f}" for figure in figures)


def command_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Whole commands, start-up and tables included."""
    yield "command", "wall s (median)", "requests/s"
    steady = ["--request-rate", "10", "--input-len", "512", "--output-len", "128", "--num-requests"]
    base = ["simulate", "llama-3.1-8b", "--gpu", "h100-80gb", "--no-report", "--json"]
    commands = {
        "kvplan --help": (["--help"], 0),
        "ten requests": ([*base, *steady, "10"], 10),
        "10 requests/s, 512 in, 128 out, 10,000 requests": ([*base, *steady, "10000"], 10_000),
    }
    if arguments.azure:
        commands["Azure 2023 conversation trace"] = ([*base, "--trace", str(arguments.azure.resolve())], 19_366)
    with tempfile.TemporaryDirectory() as folder:
        for name, (flags, num_requests) in commands.items():
            out = ["--out", folder] if num_requests else []
            wall_s = median(run([kvplan(), *flags, *out]).wall_s for _ in range(arguments.repeats))
            yield name, f"{wall_s:.2f}", f"{num_requests / wall_s:,.0f}" if num_requests else "-"


def growth_rows() -> Iterator[Row]:
    """How cost grows with the number of requests at the same load, and with the length of prompts."""
    yield "growth", "seconds", "against the first"
    first: dict[str, float] = {}
    # One run, so that the machine's moods are the same for all; the pool is empty in the very beginning only.
    tenths_s = synthetic_run(100_000)["tenths_s"]
    for tenths in (1, 3, 10):
        yield growth_row(first, "requests", f"{tenths}0,000 requests", tenths_s[tenths - 1])
    with tempfile.TemporaryDirectory() as folder:
        for num_ids in (4, 8, 16, 32):
            path = Path(folder) / "scenario.json"
            path.write_text(json.dumps(long_prompts(num_ids)))
            seconds = min(speed_of(OURS, path)["seconds"] for _ in range(3))
            yield growth_row(first, "prompts", f"400 prompts of {num_ids * 512:,} tokens", seconds)


def growth_row(first: dict[str, float], kind: str, name: str, seconds: float) -> Row:
    """One run beside the first of its kind."""
    return name, f"{seconds:.3f}", f"{seconds / first.setdefault(kind, seconds):.2f}"


def long_prompts(num_ids: int) -> Scenario:
    """400 requests, each with a prompt of its own of so many times 512 tokens."""
    requests = [
        {
            "id": f"r{number}",
            "arrive_step": number * 40,
            "input_length": num_ids * 512,
            "hash_ids": list(range(number * num_ids, (number + 1) * num_ids)),
            "output": 64,
        }
        for number in range(400)
    ]
    limits = {"max_model_len": 32_768, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    return {**limits, **SHAPES["gemma-3"], "num_blocks": 60_000, "requests": requests}


def synthetic_run(num_requests: int) -> dict[str, Any]:
    """What synthetic requests took: mean 1,000 in, 200 out, shared prefixes, 60 % load."""
    took: dict[str, Any] = json.loads(run([*OURS[:1], "-m", "benchmarks.million", str(num_requests)]).stdout)
    return took


def million_rows() -> Iterator[Row]:
    """A million synthetic requests."""
    yield "load", "wall s", "requests/s", "peak GiB"
    took = synthetic_run(1_000_000)
    rate = f"{1e6 / took['wall_s']:,.0f}"
    yield "1,000,000 synthetic requests", f"{took['wall_s']:.0f}", rate, f"{took['peak_bytes'] / 2**30:.2f}"


if __name__ == "__main__":
    main()
