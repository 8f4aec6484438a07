"""`kvplan plan` on the command line: its flags, beside those that it shares with `kvplan simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from simulator import cli_options as options

__all__ = ["plan"]


def _asked(help_text: str, *names: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(*names, help=help_text, show_default=False)
    return info


ModelNames = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="Catalogue names, Hugging Face ids, paths to a config.json: any will do, one is chosen.",
    ),
]
Slo = Annotated[
    list[str],
    _asked("Most of a measure: ttft.p99=2s, tpot.p99=40ms, e2e.mean=9s; may be given several times."),
]
SloAttainment = Annotated[
    float | None,
    _asked("Share of requests that meet all limits without a percentile: ttft=2s. [0.99]"),
]
PlanRate = Annotated[
    float | None,
    _asked(
        "So many requests a second, a Poisson process of the two lengths; without lengths: the synthetic conversation"
        " at this rate.",
        "--request-rate",
    ),
]
Seeds = Annotated[int | None, _asked("Runs of each fleet, with different random traffic. [6]")]
PricedGpus = Annotated[
    list[str] | None,
    _asked("For rent, with dollars an hour where another price holds: h200, h200=3.50. [all with a price]"),
]
TensorParallels = Annotated[str | None, _asked("Ranks of a replica, of which any will do. [1,2,4,8]", "--tp")]
MaxGpus = Annotated[int, _asked("GPUs of the whole fleet, at most. [256]")]
Spare = Annotated[int, _asked("Replicas more than those that hold, so that as many may fail. [0]")]
PlanMaxModelLen = Annotated[
    str | None, _asked("Tokens of the longest request of a server. [the longest that fits]", "--max-model-len")
]
PlanOut = Annotated[Path | None, _asked("Folder. [plans/<model>-<hash of the question>]", "--out")]


def plan(  # noqa: PLR0917  a flag each
    model: ModelNames,
    slo: Slo,
    slo_attainment: SloAttainment = None,
    request_rate: PlanRate = None,
    input_len: options.InputLen = None,
    output_len: options.OutputLen = None,
    trace: options.Trace = None,
    num_requests: options.NumRequests = None,
    rate_scale: options.RateScale = 1.0,
    spread_ticks: options.SpreadTicks = False,
    seed: options.Seed = 0,
    seeds: Seeds = None,
    gpu: PricedGpus = None,
    prices: options.PricesFile = None,
    tp: TensorParallels = None,
    max_gpus: MaxGpus = 256,
    spare: Spare = 0,
    router: options.Router = None,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    max_model_len: PlanMaxModelLen = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.92,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    step_times: options.StepTimes = "roofline",
    enable_prefix_caching: options.PrefixCaching = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    long_prefill_token_threshold: options.LongPrefill = 0,
    executor: options.ExecutorAddress = None,
    workers: options.Workers = None,
    out: PlanOut = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the cheapest fleet that keeps an SLO: what to rent, why it is enough, and why less is not.

    Several models are alternatives: the answer is a fleet of one of them, the cheapest, and what each other one would
    cost. The exit code is 1 where no fleet keeps the SLO.

    Examples: kvplan plan gemma-3-27b --request-rate 4 --slo ttft.p99=2s,tpot.p99=40ms
    kvplan plan llama-3.1-8b gemma-3-12b --trace mooncake.jsonl --slo e2e.p95=20s --gpu h200=3.50 --tp 1,2
    """
    settings = dict(locals())
    for name in _PLAN_ONLY:
        del settings[name]
    from simulator.planner_command import PlanQuestion, print_plan

    question = PlanQuestion(
        models=model,
        settings=settings,
        slo=slo,
        attainment=slo_attainment,
        gpus=gpu or (),
        prices=prices,
        ranks=tp,
        max_gpus=max_gpus,
        spare=spare,
        router=router,
        num_seeds=seeds,
    )
    code = print_plan(question, out=out, executor=executor, num_workers=workers, as_json=as_json)
    if code:
        raise typer.Exit(code)


_PLAN_ONLY = (
    "model", "slo", "slo_attainment", "seeds", "gpu", "prices", "tp", "max_gpus", "spare", "router", "executor",
    "workers", "out", "as_json",
)  # fmt: skip
"""Flags of `kvplan plan` that are no settings of a scenario."""
