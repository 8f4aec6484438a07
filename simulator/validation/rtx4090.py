"""One run of vLLM on an RTX 4090: 300 ShareGPT requests, far more than the pool holds at once, replayed.

Data (LLMServingSim, MIT), below one folder: `measured/vllm_rtx4090_llama31_8b` (requests' stamps, running requests and
KV cache usage every second; vLLM 0.19, asynchronous scheduling), `measured/profile_rtx4090` (its kernels) and
`traces/sharegpt_300_hash16.jsonl` (which prompts begin alike). Requests arrive when the server queued them.

The pool is stated, since the run says what it was: 2,588 blocks, the null block among them, which no request can have.
Step times come from kernels, or from the first requests' stamps; what is compared is then everything else, and of
the last 200 requests also these.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from simulator.calibration import RooflineOf, Spans, fit_efficiencies
from simulator.calibration_logs import MeasuredRun, read_request_stamps
from simulator.calibration_stamps import fit_to_stamps, replay
from simulator.deployment import Deployment, deploy
from simulator.engine import simulate_on
from simulator.latency import StepTimes
from simulator.result import Result
from simulator.roofline import Roofline
from simulator.scenario import Scenario
from simulator.validation.kernel_profile import KernelProfile
from workloads import Trace

__all__ = ["SCENARIO", "WAYS", "Measure", "Rtx4090Run", "Series", "Validation", "validate"]

Floats = npt.NDArray[np.float64]

RUN = Path("measured", "vllm_rtx4090_llama31_8b")
PROFILE = Path("measured", "profile_rtx4090", "meta-llama", "Llama-3.1-8B", "bf16", "tp1")
PREFIXES = Path("traces", "sharegpt_300_hash16.jsonl")
PREFIX_BLOCK_TOKENS = 16
NUM_LAYERS = 32
NUM_CALIBRATING = 100
"""Requests whose stamps a calibration may use: the first third."""
EVERY_STEP = 8
"""Of the steps that the kernels make of the workload one in so many is fitted."""

SCENARIO = Scenario(
    model="llama-3.1-8b",
    gpu="rtx-4090",
    num_gpu_blocks_override=2588,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_model_len=32768,
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run, measured and predicted, both in `unit`."""

    name: str
    unit: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A server over time: [points] each."""

    time_s: Floats
    """From the first arrival."""
    running: Floats
    """Requests."""
    kv_usage: Floats
    """Part of the pool that requests hold."""


@dataclass(frozen=True, eq=False)
class Validation:
    """A run and its replay, side by side."""

    measures: tuple[Measure, ...]
    measured: Series
    predicted: Series
    num_preemptions: int
    """Of the replay; nobody counted the server's."""


@dataclass(frozen=True, eq=False)
class Rtx4090Run:
    """The data of the run, read when they are needed."""

    data: Path
    """The folder with `measured` and `traces`."""

    @cached_property
    def run(self) -> MeasuredRun:
        """Requests and their stamps, with the prefixes that they share."""
        run = read_request_stamps(self.data / RUN / "requests.jsonl")
        lines = (self.data / PREFIXES).read_text(encoding="utf-8").splitlines()
        prefix_ids = [json.loads(line)["hash_ids"] for line in lines]
        requests = [
            replace(request, prefix_ids=tuple(ids[: request.prompt_tokens // PREFIX_BLOCK_TOKENS]))
            for request, ids in zip(run.requests, prefix_ids, strict=True)
        ]
        return MeasuredRun(tuple(requests), run.stamps)

    @property
    def trace(self) -> Trace:
        """The workload, as it reached the server."""
        return replace(self.run.trace("sharegpt-300"), prefix_block_tokens=PREFIX_BLOCK_TOKENS)

    @property
    def series(self) -> Series:
        """What the server logged every second."""
        table = pd.read_csv(self.data / RUN / "timeseries.csv").astype(float)
        return Series(
            table["t"].to_numpy(), table["running"].to_numpy(), table["kv_cache_pct"].to_numpy() / 100
        )  # its clock began 0.1 s before the first arrival

    @cached_property
    def kernels(self) -> KernelProfile:
        """Steps of the card's kernels."""
        return KernelProfile(self.data / PROFILE, NUM_LAYERS)


def validate(run: Rtx4090Run, step_times: StepTimes) -> Validation:
    """Replay the run with other step times than the server's own."""
    result = simulate_on(replace(deploy(SCENARIO), other_step_times=step_times), run.trace)
    rows = result.requests.assign(number=result.requests["request_id"].astype(int)).sort_values("number")
    names = ("arrival_s", "first_token_s", "finish_s")
    arrival_s, first_s, last_s = (rows[name].to_numpy() for name in names)
    here = _measures(arrival_s, first_s, last_s, rows["output_tokens"].to_numpy())
    there = _measures(*_stamp_columns(run.run))
    measures = [Measure(name, unit, there[name, unit], value) for (name, unit), value in here.items()]
    return Validation(tuple(measures), run.series, _series(result), int(rows["num_preemptions"].sum()))


def _stamp_columns(run: MeasuredRun) -> tuple[Floats, Floats, Floats, Floats]:
    stamps = list(run.stamps.values())
    return (
        np.array([each.arrival_s for each in stamps]),
        np.array([each.token_s[1] for each in stamps]),
        np.array([max(each.token_s.values()) for each in stamps]),
        np.array([request.output_tokens for request in run.requests], dtype=np.float64),
    )


def _measures(arrival_s: Floats, first_s: Floats, last_s: Floats, num_tokens: Floats) -> dict[tuple[str, str], float]:
    """The figures that count, by name and unit."""
    span_s, ttft_s, several = last_s.max() - arrival_s.min(), first_s - arrival_s, num_tokens > 1
    tpot_s = (last_s - first_s)[several] / (num_tokens[several] - 1)
    return {
        ("Makespan", "s"): float(span_s),
        ("Output throughput", "tokens/s"): float(num_tokens.sum() / span_s),
        ("TTFT mean", "s"): float(ttft_s.mean()),
        ("TTFT p50", "s"): float(np.median(ttft_s)),
        ("TPOT mean", "ms"): float(1e3 * tpot_s.mean()),
        ("E2E mean", "s"): float((last_s - arrival_s).mean()),
    }


def _series(result: Result) -> Series:
    steps = result.steps
    num_blocks = result.capacity["num_blocks"] - 1
    return Series(
        steps["start_s"].to_numpy(), steps["running"].to_numpy().astype(float),
        steps["held_blocks"].to_numpy() / num_blocks,
    )  # fmt: skip


# Where step times come from.


def _roofline_of(deployment: Deployment) -> RooflineOf:
    assert deployment.gpu is not None
    return partial(Roofline, deployment.model, deployment.gpu, 1, "auto")


def _of_kernels(run: Rtx4090Run) -> StepTimes:
    return run.kernels


def _fitted_to_kernels(run: Rtx4090Run) -> StepTimes:
    deployment = deploy(SCENARIO)
    roofline_of = _roofline_of(deployment)
    steps = replay(deployment, run.trace, run.kernels).batches[::EVERY_STEP]
    composed = Spans.of_steps(steps, [run.kernels.durations_s(step)[0] for step in steps])
    return roofline_of(fit_efficiencies(roofline_of, composed).efficiencies)


def _fitted_to_stamps(run: Rtx4090Run) -> StepTimes:
    deployment = deploy(SCENARIO)
    roofline_of = _roofline_of(deployment)
    found = fit_to_stamps(deployment, run.trace, run.run.first(NUM_CALIBRATING), roofline_of)
    return roofline_of(found.fit.efficiencies)


def _defaults(run: Rtx4090Run) -> StepTimes:
    return deploy(SCENARIO).step_times


WAYS: dict[str, Callable[[Rtx4090Run], StepTimes]] = {
    "kernels": _of_kernels,
    "roofline fitted to steps of kernels": _fitted_to_kernels,
    "roofline fitted to the first 100 requests": _fitted_to_stamps,
    "roofline as it comes": _defaults,
}
"""Ways to step times that none of the compared figures went into: the last has this GPU's constants."""
