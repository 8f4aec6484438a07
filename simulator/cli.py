"""The command line: each command's flags, and what a person's mistake ends in.

What a command needs is imported when it runs, so that help comes at once.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from simulator import cli_options as options
from simulator.cli_calibrate import calibrate
from simulator.cli_plan import plan
from simulator.cli_validate import validate
from simulator.cli_waste import waste

if TYPE_CHECKING:
    from simulator.fleet_options import FleetOptions
    from simulator.result import Result

__all__ = ["app", "main"]

# What every error about flags and arguments derives from; typer has no public name for it.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="kvplan",
    help="Replay request traces against vLLM's hybrid KV-cache manager, and plan the memory of LLM serving.",
    add_completion=False,
    rich_markup_mode=None,  # plain help: long flags stay whole, and nothing heavy is loaded
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _kvplan(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def simulate(  # noqa: PLR0917  a flag per setting, as on a server's command line
    model: options.ModelName,
    gpu: options.Gpu = None,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    enforce_eager: options.EnforceEager = False,
    speculative_config: options.SpeculativeConfig = None,
    trace: options.Trace = None,
    request_rate: options.RequestRate = None,
    input_len: options.InputLen = None,
    output_len: options.OutputLen = None,
    num_requests: options.NumRequests = None,
    rate_scale: options.RateScale = 1.0,
    spread_ticks: options.SpreadTicks = False,
    seed: options.Seed = 0,
    concurrency: options.Concurrency = None,
    num_warmups: options.NumWarmups = None,
    concurrent_sessions: options.ConcurrentSessions = None,
    session_rate: options.SessionRate = None,
    num_sessions: options.NumSessions = None,
    max_think_time_s: options.MaxThinkTime = None,
    step_time_s: options.StepTime = None,
    step_times: options.StepTimes = "roofline",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.92,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    num_gpu_blocks_override: options.NumGpuBlocks = None,
    block_size: options.BlockSize = None,
    mamba_block_size: options.MambaBlockSize = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    mamba_cache_dtype: options.MambaCacheDtype = "auto",
    mamba_ssm_cache_dtype: options.MambaSsmCacheDtype = "auto",
    enable_prefix_caching: options.PrefixCaching = None,
    prefix_cache_retention_interval: options.Retention = None,
    disable_hybrid_kv_cache_manager: options.DisableHybrid = False,
    grouping: options.Grouping = None,
    semantics: options.Semantics = "vllm",
    kv_offloading_size: options.KvOffloadingSize = None,
    kv_offloading_bandwidth: options.KvOffloadingBandwidth = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    async_scheduling: options.AsyncScheduling = True,
    long_prefill_token_threshold: options.LongPrefill = 0,
    scheduling_policy: options.Policy = "fcfs",
    scheduler_reserve_full_isl: options.ReserveFullIsl = None,
    watermark: options.Watermark = 0.0,
    replicas: options.Replicas = 1,
    replica: options.Replica = None,
    router: options.Router = None,
    router_staleness_s: options.RouterStaleness = None,
    outage: options.Outages = None,
    random_outages: options.RandomOutages = None,
    on_failure: options.OnFailure = None,
    drain: options.Drains = None,
    cold_start_s: options.ColdStart = None,
    autoscale: options.Autoscale = None,
    prefill_replicas: options.PrefillReplicas = None,
    decode_replicas: options.DecodeReplicas = None,
    link_gbps: options.LinkGbps = None,
    link_latency_s: options.LinkLatency = None,
    back_with: options.BackWith = None,
    pool_fraction: options.PoolFraction = 1.0,
    out: options.Out = None,
    timeline: options.Timeline = None,
    as_json: options.AsJson = False,
    no_report: options.NoReport = False,
) -> None:
    """Replay a trace on one server or several, and report what fits, what waits and what is wasted.

    Examples: kvplan simulate gemma-3-27b --gpu h100-80gb -tp 2 --trace mooncake.jsonl
    kvplan simulate llama-3.1-8b --gpu h100-80gb --replicas 4 --router prefix-aware
    kvplan simulate llama-3.1-8b --gpu h100-80gb --concurrent-sessions 64
    """
    settings = dict(locals())
    of_fleet = ("replicas", "replica", "router", "router_staleness_s")
    operated = ("outage", "random_outages", "on_failure", "drain", "cold_start_s", "autoscale")
    disaggregated = ("prefill_replicas", "decode_replicas", "link_gbps", "link_latency_s")
    for name in (*of_fleet, *operated, *disaggregated, "out", "timeline", "as_json", "no_report"):
        del settings[name]
    from simulator.fleet_options import FleetOptions
    from simulator.operations_options import OperationOptions

    operations = OperationOptions(
        tuple(outage or ()), random_outages, on_failure, tuple(drain or ()), cold_start_s, autoscale
    )
    fleet = FleetOptions(
        replicas, tuple(replica or ()), router, router_staleness_s, operations, prefill_replicas, decode_replicas,
        link_gbps, link_latency_s,
    )  # fmt: skip
    _simulate(settings, fleet, out, timeline, as_json=as_json, no_report=no_report)


def _simulate(
    settings: dict[str, Any],
    fleet_options: "FleetOptions",
    out: Path | None,
    timeline: Path | None,
    *,
    as_json: bool,
    no_report: bool,
) -> None:
    from simulator.asked import prepare
    from simulator.progress import RunProgress
    from simulator.run_folder import check_folder, default_folder, write_run
    from simulator.scenario import Scenario, ScenarioError
    from simulator.step_times import step_times_sources

    if out is not None and not out.name:
        raise ScenarioError(f"--out: must name a folder, got {str(out)!r}")
    scenario = Scenario(**settings)
    run = prepare(scenario, fleet_options, timeline)
    folder = out or default_folder(scenario)
    check_folder(folder)  # before the run, not after it
    with RunProgress(scenario, shown=not as_json) as progress:
        result = run(progress.trace, progress.update)
    write_run(result, folder, with_report=not no_report)
    for source in step_times_sources(result.to_json()):
        print(f"kvplan: step times: {source}", file=sys.stderr)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
        return
    files = [file for file in sorted(folder.iterdir()) if not file.name.startswith(".")]
    _print_summary(result, files if timeline is None else [*files, timeline])


def _print_summary(result: "Result", files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    from simulator.measured_memory import measured_lines
    from simulator.summary_table import summary_lines

    table = Table(show_header=False, title=f"{result.scenario['model']}", title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in (*summary_lines(result.summary), *measured_lines(result.measured_memory)):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for file in files:
        console.print(str(file), highlight=False)


@app.command(context_settings={"allow_extra_args": True})
def capacity(  # noqa: PLR0917  a flag per setting, as on a server's command line
    context: typer.Context,
    model: options.ModelName,
    gpu: options.Gpu = None,
    tensor_parallel_size: options.TensorParallel = 1,
    pipeline_parallel_size: options.PipelineParallel = 1,
    enable_expert_parallel: options.ExpertParallel = False,
    enforce_eager: options.EnforceEager = False,
    speculative_config: options.SpeculativeConfig = None,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.92,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    num_gpu_blocks_override: options.NumGpuBlocks = None,
    block_size: options.BlockSize = None,
    mamba_block_size: options.MambaBlockSize = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    mamba_cache_dtype: options.MambaCacheDtype = "auto",
    mamba_ssm_cache_dtype: options.MambaSsmCacheDtype = "auto",
    enable_prefix_caching: options.PrefixCaching = None,
    disable_hybrid_kv_cache_manager: options.DisableHybrid = False,
    grouping: options.Grouping = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    async_scheduling: options.AsyncScheduling = True,
    request_len: options.RequestLen = None,
    curve: options.Curve = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a server would print at start, without a GPU: block size, padding, blocks, tokens, concurrency.

    It refuses where the server would. A whole serve command may follow "--": its flags that change KV memory count,
    the others are named.

    Examples: kvplan capacity gemma-3-27b --gpu h100-80gb -tp 2
    kvplan capacity --gpu h100-80gb -- vllm serve google/gemma-3-27b-it -tp 2 --max-model-len 32768
    """
    settings = dict(locals())
    for name in ("context", "request_len", "curve", "as_json"):
        del settings[name]
    serve_words = [model, *context.args] if context.args else []
    if serve_words:
        del settings["model"]
    from simulator.capacity_command import print_capacity

    print_capacity(settings, serve_words, request_lengths=request_len or [], curve=curve, as_json=as_json)


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Catalogue name, Hugging Face id, or path to a config.json.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the models of the catalogue, or say of one what each layer keeps, where that is known from, what is assumed.

    Example: kvplan models jamba-v0.1
    """
    from simulator.models_command import print_models

    print_models(name, as_json=as_json)


app.command()(waste)


app.command()(plan)


app.command()(calibrate)


app.command()(validate)


@app.command()
def sweep(  # noqa: PLR0917  a flag each
    study: options.StudyFile,
    out: options.StudyOut = None,
    workers: options.Workers = None,
    executor: options.ExecutorAddress = None,
    prices: options.PricesFile = None,
    max_points: options.MaxPoints = 1000,
    as_json: options.AsJson = False,
    no_report: options.NoReport = False,
) -> None:
    """Run a study: a grid or a list over any settings, side by side, and say what it found.

    A study that was stopped goes on where it was. The file is TOML: [base] settings for all points, a [grid] of lists
    or [[point]] tables, and an [slo] and [prices] if there are any.

    Example: kvplan sweep study.toml
    """
    from simulator.sweep_command import SweepOptions, run_sweep

    how = SweepOptions(out, workers, executor, prices, max_points, as_json, no_report)
    raise typer.Exit(run_sweep(study, how))


@app.command()
def compare(run: options.FirstRun, other: options.SecondRun, as_json: options.AsJson = False) -> None:
    """Put two runs side by side: what differs in their settings, in their capacity, and in what came out.

    Example: kvplan compare runs/a runs/b
    """
    from simulator.compare_command import compare_runs

    compare_runs(run, other, as_json=as_json)


@app.command()
def trace(
    file: options.TraceFile,
    block_size: options.TraceBlockSize = 16,
    out: options.Picture = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a trace: requests, rate and burstiness, lengths, how much a prefix cache could save, what looks wrong.

    The picture goes to FILE's name with .png in the current folder, or into --out.
    """
    from simulator.trace_command import describe_trace

    describe_trace(file, block_size, out, as_json=as_json)


@app.command()
def explain(
    run: options.Run,
    request: options.RequestId,
    trace: options.RunTrace = None,
    out: options.StoryPicture = None,
    as_json: options.AsJson = False,
) -> None:
    """Tell the life of one request of a run: why it waited, what cut its prefix hit, who preempted it.

    The run, of a single server or of a fleet, is replayed until the request has ended. The picture goes into the run
    folder, or into --out.

    Example: kvplan explain runs/gemma-3-27b-20260801-120000 17
    """
    from simulator.explain_command import explain_request

    explain_request(run, request, trace, out, as_json=as_json)


def main() -> None:
    """The `kvplan` command: a person's mistake is one line on standard error and exit code 2."""
    try:
        exit_code = app(standalone_mode=False)
    except USAGE_ERROR as mistake:
        _refuse(mistake.format_message().replace("\n", " ").strip())
    except typer.Abort:
        sys.exit(130)
    except _mistakes() as mistake:
        _refuse(str(mistake))
    sys.exit(exit_code)  # not above: every exception that passes there looks up `_mistakes`, which is slow


def _refuse(message: str) -> NoReturn:
    print(f"kvplan: {message}", file=sys.stderr)
    sys.exit(2)


def _mistakes() -> tuple[type[Exception], ...]:
    """Errors that are a person's to mend. Looked up only where something was raised."""
    from simulator.mistakes import MISTAKES

    return MISTAKES
