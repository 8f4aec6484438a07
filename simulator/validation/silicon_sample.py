"""Published measurements of vLLM under closed-loop load, replayed: `silicon_sample.csv` of aiconfigurator-core 0.12.

A row has a model, how its weights are stored, a GPU, ranks, two lengths, how many requests were in flight, and the
mean time to the first token and between tokens. What it does not say is taken from how those who measured publish
that they measure:

- Most rows are InferenceX's (github SemiAnalysisAI/InferenceX, benchmarks/*.sh, read 2026-11-30): ten requests for
  each that is in flight, all of these at once at the beginning; lengths evenly between 0.8 and 1 times those of the
  row; 8,192 tokens a step, no prefix hits; memory, KV cache dtype and `max_num_seqs` as in the scripts.
- The others are of vLLM 0.12 as it starts by default, so it scheduled synchronously. What their client did is not
  known: they are replayed in the same way.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models_configs import Everything, find_model
from simulator.efficiencies import Efficiencies
from simulator.engine import simulate
from simulator.hardware import find_gpu
from simulator.latency import Work
from simulator.roofline import Roofline
from simulator.scenario import Scenario
from workloads import Trace, TraceRequest

__all__ = ["Outcome", "Point", "Row", "is_fitted_on", "points_of", "read_rows", "replay"]

SAMPLE = Path("systems", "silicon_sample.csv")
GPUS = {"h100_sxm": "h100-80gb", "h200_sxm": "h200", "b200_sxm": "b200"}
UNKNOWN_CLIENT = "source_file=/"
"""How the sources of rows begin that are not InferenceX's."""
FITTED_ON = 10
"""Constants were fitted on the rows whose id has a hash that so many divide, and on no others."""
REQUESTS_PER_PLACE = 10
SHORTEST = 0.8
"""Of a length, as a part of the longest."""
LARGE = 512
"""`max_num_seqs` in the scripts for B200; in the others the requests in flight."""
MEAN = (1 + SHORTEST) / 2
STEP_TOKENS = 8192
SPARE_TOKENS = 200
"""Of `max_model_len`, beyond both lengths."""
CLIENT_S, CLIENT_TOKEN_S = 13e-3, 7.5e-6
"""What a client sees of its own and of the front end before a request reaches the scheduler (HTTP, making tokens of
text): for a request, and for each token of its prompt. They are where the mean size of the logarithm of predicted over
measured TTFT is least, on the tenth of the rows and with `silicon`."""
SEED = 1


class Row(NamedTuple):
    """One measurement."""

    id: str
    model: str
    """Of Hugging Face."""
    gpu: str
    weights: str
    """How they are stored, in the sample's words; empty for 16 bits."""
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
    gpu_memory_utilization: float
    input_len: int
    output_len: int
    concurrency: int


class Outcome(NamedTuple):
    """Means over all requests of a replay, as a client sees them."""

    ttft_s: float
    tpot_s: float
    source: str
    """Of the step times."""


class _Stored(NamedTuple):
    """A model with its weights in one format, and how the scripts serve it."""

    model: str
    quantization: str | None = None
    fp8_kv_on: tuple[str, ...] = ()
    """GPUs on which keys and values take 8 bits: by the scripts, or because the checkpoint says so."""
    gpu_memory_utilization: float = 0.9


EVERYWHERE = tuple(GPUS.values())
STORED = {
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): _Stored("minimax-m2", gpu_memory_utilization=0.95),
    ("MiniMaxAI/MiniMax-M2.5", "nvfp4"): _Stored("minimax-m2.5-nvfp4", fp8_kv_on=EVERYWHERE),
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): _Stored("qwen3-235b-a22b-fp8"),
    ("Qwen/Qwen3-32B", ""): _Stored("qwen3-32b"),
    ("Qwen/Qwen3-32B", "fp8"): _Stored("qwen3-32b", "fp8", EVERYWHERE),
    ("meta-llama/Llama-3.1-70B", "fp8"): _Stored("llama-3.1-70b", "fp8", EVERYWHERE),
    ("meta-llama/Llama-3.1-70B", "nvfp4"): _Stored("llama-3.1-70b", "modelopt_fp4", EVERYWHERE),
    ("moonshotai/Kimi-K2.5", "int4_wo"): _Stored("kimi-k2.5", gpu_memory_utilization=0.97),
    ("moonshotai/Kimi-K2.5", "nvfp4"): _Stored("kimi-k2.5-nvfp4", fp8_kv_on=EVERYWHERE),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): _Stored("llama-3.1-8b-fp8", fp8_kv_on=EVERYWHERE),
    ("openai/gpt-oss-120b", "nvfp4"): _Stored("gpt-oss-120b", fp8_kv_on=("b200",)),
}
"""By the sample's names of a model and of the format. gpt-oss has MXFP4, which the sample calls like the other one."""


def read_rows() -> Iterator[dict[str, str]]:
    """The sample's rows of vLLM, not disaggregated, on `GPUS`. Raises FileNotFoundError without the extra `silicon`."""
    package = find_spec("aiconfigurator_core")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("aiconfigurator_core")
    with (Path(package.submodule_search_locations[0]) / SAMPLE).open(encoding="utf-8", newline="") as file:
        for fields in csv.DictReader(file):
            if fields["backend"] == "vllm" and fields["mode"] == "agg" and fields["system"] in GPUS:
                yield fields


def is_fitted_on(row: Row) -> bool:
    """Whether constants were fitted on this row (among others)."""
    return int(sha256(row.id.encode()).hexdigest(), 16) % FITTED_ON == 0


def points_of(rows: Iterable[Mapping[str, str]]) -> tuple[dict[Point, list[Row]], Counter[str]]:
    """The measurements of each point that can be replayed; and why rows were left out, how many of each kind."""
    points: dict[Point, list[Row]] = {}
    left_out: Counter[str] = Counter()
    for fields in rows:
        row, reason = _row(fields), _why_not(fields)
        point = None if reason else _point(fields)
        if point is not None and any(row[5:] == other[5:] for other in points.get(point, [])):
            reason = "a copy of another row"
        elif point is not None and not _is_possible(point, row):
            reason = "faster than the GPU's peaks allow: its prompts must have been cached"
        if point is None or reason:
            left_out[reason] += 1
        else:
            points.setdefault(point, []).append(row)
    return points, left_out


def _row(fields: Mapping[str, str]) -> Row:
    return Row(
        fields["id"],
        fields["model_path"],
        GPUS[fields["system"]],
        fields["gemm_quant_mode"],
        fields["backend_version"],
        float(fields["silicon_ttft_ms"]) / 1e3,
        float(fields["silicon_tpot_ms"]) / 1e3,
    )


def _why_not(fields: Mapping[str, str]) -> str:
    """Why a row cannot be replayed; nothing if it can."""
    if fields["attention_dp_size"] not in {"", "1"}:
        return "attention is data-parallel, which is not modelled"
    stored = STORED[fields["model_path"], fields["gemm_quant_mode"]]
    num_expert_gpus = int(fields["moe_tp_size"] or 1) * int(fields["moe_ep_size"] or 1)
    if find_model(stored.model).has_experts and num_expert_gpus != int(fields["tp_size"]):
        return "experts are on more GPUs than attention"
    return ""


def _point(fields: Mapping[str, str]) -> Point:
    stored, gpu = STORED[fields["model_path"], fields["gemm_quant_mode"]], GPUS[fields["system"]]
    return Point(
        model=stored.model,
        quantization=stored.quantization,
        kv_cache_dtype="fp8" if gpu in stored.fp8_kv_on else "auto",
        gpu=gpu,
        tensor_parallel=int(fields["tp_size"]),
        expert_parallel=int(fields["moe_ep_size"] or 1) > 1,
        async_scheduling=not fields["silicon_data_source"].startswith(UNKNOWN_CLIENT),
        gpu_memory_utilization=stored.gpu_memory_utilization,
        input_len=int(fields["isl"]),
        output_len=int(fields["osl"]),
        concurrency=int(fields["batch_size"]),
    )


def _is_possible(point: Point, row: Row) -> bool:
    """Whether a server that reaches all peaks would be as fast with as many requests in flight."""
    request_s = row.ttft_s + (MEAN * point.output_len - 1) * row.tpot_s
    return point.concurrency * _least_s(point._replace(concurrency=1)) <= request_s


@cache
def _least_s(point: Point) -> float:
    """Seconds that a server needs for a request of mean length at the peaks of its hardware, weights left out."""
    model = find_model(point.model, point.quantization)
    peaks = Roofline(model, find_gpu(point.gpu), point.tensor_parallel, point.kv_cache_dtype, Efficiencies.at_peak())
    prompt, output = int(MEAN * point.input_len), int(MEAN * point.output_len)
    reaches = (Everything(), *model.reaches)
    pairs = tuple(float(reach.num_pairs(prompt, 0)) for reach in reaches)
    reads = tuple(float(reach.num_pairs(output, prompt)) for reach in reaches)
    return peaks.least_s(Work(0, prompt + output, 0, STEP_TOKENS, pairs, reads, output))


def replay(point: Point, step_times: str) -> Outcome:
    """Serve what was served. Raises ValueError where such a server would not start."""
    scenario = Scenario(
        model=point.model,
        quantization=point.quantization,
        kv_cache_dtype=point.kv_cache_dtype,
        gpu=point.gpu,
        tensor_parallel_size=point.tensor_parallel,
        enable_expert_parallel=point.expert_parallel,
        async_scheduling=point.async_scheduling,
        gpu_memory_utilization=point.gpu_memory_utilization,
        enable_prefix_caching=False,
        max_model_len=point.input_len + point.output_len + SPARE_TOKENS,
        max_num_seqs=LARGE if point.gpu == "b200" else point.concurrency,
        max_num_batched_tokens=STEP_TOKENS,
        concurrency=point.concurrency,
        step_times=step_times,
    )
    result = simulate(scenario, _trace(point))
    requests = result.requests
    ttft_s = requests["first_token_s"] - requests["arrival_s"]
    tpot_s = (requests["finish_s"] - requests["first_token_s"]) / (requests["output_tokens"] - 1)
    client_s = CLIENT_S + CLIENT_TOKEN_S * float(requests["prompt_tokens"].mean())
    return Outcome(float(ttft_s.mean()) + client_s, float(tpot_s.mean()), str(result.capacity["step_times"]))


def _trace(point: Point) -> Trace:
    random, num_requests = np.random.default_rng(SEED), point.concurrency * REQUESTS_PER_PLACE
    prompts, outputs = (
        random.integers(int(length * SHORTEST), length, num_requests, endpoint=True)
        for length in (point.input_len, point.output_len)
    )
    requests = [
        TraceRequest(request_id=str(number), arrival_s=0.0, prompt_tokens=int(prompt), output_tokens=int(output))
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
    return Trace("closed loop", None, lambda: iter(requests), num_requests)
