"""Published measurements of vLLM under closed-loop load, replayed: `silicon_sample.csv` of aiconfigurator-core 0.12.0.

A row has a model, how its weights are stored, a GPU, ranks, the two lengths, how many requests were in flight, and the
mean time to the first token and between tokens. What it does not say is taken from how those who measured publish
that they measure:

- Most rows are InferenceX's (github SemiAnalysisAI/InferenceX, benchmarks/*.sh, read 2026-11-30): ten requests for
  each in flight, all at once at the beginning and the next when one ends; lengths evenly between 0.8 and 1 times those
  of the row; 8,192 tokens a step, no prefix hits (prompts are random); memory, KV cache dtype and `max_num_seqs` by
  model and GPU, as in their scripts.
- The others are of vLLM 0.12 with its defaults: it scheduled synchronously, and what their client did is not known.
  They are replayed in the same way.

The client's own part of the time to the first token (HTTP, making tokens of text) is `CLIENT_S` and `CLIENT_TOKEN_S`.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models_configs import Model, find_model
from simulator.engine import simulate
from simulator.hardware import find_gpu
from simulator.scenario import Scenario
from workloads import Trace, TraceRequest

__all__ = ["CONSTANTS_FROM", "Outcome", "Point", "Row", "is_fitted_on", "points_of", "read_rows", "replay"]

SAMPLE = Path("systems", "silicon_sample.csv")
GPUS = {"h100_sxm": "h100-80gb", "h200_sxm": "h200", "b200_sxm": "b200"}
CONSTANTS_FROM = 10
"""Constants were fitted on every row whose id has a hash that so many divide; on the others they were not."""
WAVES = 10
"""Requests, for each that is in flight."""
SHORTEST = 0.8
"""Of a length, as a part of the longest."""
CLIENT_S, CLIENT_TOKEN_S = 0.0, 0.0
LARGE = 512
"""`max_num_seqs` of the scripts for B200; the others set it to the requests in flight."""
SEED = 1


class Row(NamedTuple):
    """One measurement."""

    id: str
    model: str
    """Of Hugging Face."""
    weights: str
    """How they are stored, in the sample's words; empty for 16 bits."""
    gpu: str
    version: str
    ttft_s: float
    tpot_s: float


class Point(NamedTuple):
    """What was measured, perhaps more than once."""

    model: str
    quantization: str | None
    kv_cache_dtype: str
    gpu: str
    tensor_parallel: int
    expert_parallel: bool
    async_scheduling: bool
    input_len: int
    output_len: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Means over all requests of a replay."""

    ttft_s: float
    tpot_s: float


class _Stored(NamedTuple):
    """A model as the sample has it."""

    model: str
    quantization: Mapping[str, str | None]
    """By the sample's word for the format of its matrices."""
    gpu_memory_utilization: float = 0.9
    fp8_kv_on: tuple[str, ...] = ()
    """GPUs on which its KV cache is kept in 8 bits."""


MODELS = {
    "MiniMaxAI/MiniMax-M2.5": _Stored("MiniMaxAI/MiniMax-M2.5", {"fp8": None}, 0.95),
    "Qwen/Qwen3-235B-A22B-FP8": _Stored("Qwen/Qwen3-235B-A22B-FP8", {"fp8": None}),
    "Qwen/Qwen3-32B": _Stored("Qwen/Qwen3-32B", {"": None, "fp8": "fp8"}),
    "meta-llama/Llama-3.1-70B": _Stored(
        "llama-3.1-70b", {"fp8": "fp8", "nvfp4": "modelopt_fp4"}, fp8_kv_on=("h100-80gb", "h200", "b200")
    ),
    "moonshotai/Kimi-K2.5": _Stored("kimi-k2.5", {"int4_wo": None}, 0.97),
    "nvidia/Llama-3.1-8B-Instruct-FP8": _Stored("llama-3.1-8b-fp8", {"fp8": None}, fp8_kv_on=("h200",)),
    "openai/gpt-oss-120b": _Stored("gpt-oss-120b", {"nvfp4": None}, fp8_kv_on=("b200",)),
}
"""Of the rows of vLLM on `GPUS` that are not disaggregated. gpt-oss has MXFP4, which the sample calls by another name."""


def read_rows() -> Iterator[dict[str, str]]:
    """The sample's rows of vLLM on one server with one of `GPUS`. Raises FileNotFoundError without the extra `silicon`."""
    package = find_spec("aiconfigurator_core")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("aiconfigurator_core")
    with (Path(package.submodule_search_locations[0]) / SAMPLE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["backend"] == "vllm" and row["mode"] == "agg" and row["system"] in GPUS:
                yield row


def points_of(rows: Iterable[Mapping[str, str]]) -> tuple[dict[Point, list[Row]], dict[str, int]]:
    """The measurements of each point that can be replayed; and of the rows left out how many for which reason."""
    points: dict[Point, list[Row]] = {}
    left_out: dict[str, int] = {}
    for fields in rows:
        row, point = _row(fields), _point(fields)
        reason = point if isinstance(point, str) else _why_not(row, point, points.get(point, []))
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            points.setdefault(point, []).append(row)
    return points, left_out
