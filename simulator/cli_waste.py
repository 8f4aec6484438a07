"""`kvplan waste` on the command line: its flags, beside those that it shares with `kvplan simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from simulator import cli_options as options

__all__ = ["waste"]


def waste(  # noqa: PLR0917  a flag each
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Catalogue name, Hugging Face id, or path to a config.json.")
    ] = None,
    all_models: Annotated[bool, typer.Option("--all-models", help="All models of the catalogue.")] = False,
    grouping: Annotated[
        list[str] | None,
        typer.Option(
            help="vllm, per-layer, smallest, gcd, search, unified, packed, document-mamba, two-level or ideal;"
            " may be given several times. [all]"
        ),
    ] = None,
    request_len: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of a request; may be given several times. [128 to 131072, in powers of 4]"),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Percent of padding that is still acceptable. [10]", show_default=False)
    ] = 10.0,
    trace: options.WasteTrace = None,
    gpu: options.Gpu = None,
    tensor_parallel_size: options.TensorParallel = 1,
    num_requests: options.NumRequests = None,
    rate_scale: options.RateScale = 1.0,
    spread_ticks: options.SpreadTicks = False,
    seed: options.Seed = 0,
    step_time_s: options.StepTime = None,
    max_model_len: options.MaxModelLen = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.92,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    block_size: options.BlockSize = None,
    kv_cache_dtype: options.KvCacheDtype = "auto",
    enable_prefix_caching: options.PrefixCaching = None,
    prefix_cache_retention_interval: options.Retention = None,
    semantics: options.Semantics = "vllm",
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    async_scheduling: options.AsyncScheduling = True,
    as_json: options.AsJson = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables (CSV), pictures (PNG) and a report (HTML, Markdown).")
    ] = None,
) -> None:
    """Say what ways of grouping layers waste of a request's bytes, and where vLLM's is not the best. No GPU is needed.

    With a trace and a GPU the trace is replayed under each grouping, with one budget of bytes for all.

    Examples: kvplan waste gemma-3-27b --request-len 8192
    kvplan waste gemma-3-27b --gpu h200 --trace mooncake.jsonl --num-requests 1000 --out waste
    """
    settings = dict(locals())
    for name in ("model", "all_models", "grouping", "request_len", "threshold", "as_json", "out"):
        del settings[name]
    from simulator.waste_command import print_waste

    print_waste(
        model,
        settings,
        all_models=all_models,
        groupings=grouping or [],
        request_lengths=request_len or [],
        threshold_pct=threshold,
        out=out,
        as_json=as_json,
    )
