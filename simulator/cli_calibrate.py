"""`kvplan calibrate` on the command line: its flags, beside those that it shares with `kvplan simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from simulator import cli_options as options

__all__ = ["calibrate"]


def calibrate(  # noqa: PLR0917  a flag each
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Steps (.csv), request stamps (.jsonl) or a result of vllm bench serve (.json): docs/calibration.md.",
        ),
    ],
    model: Annotated[str, typer.Option(help="Catalogue name, Hugging Face id, or path to a config.json.")],
    out: Annotated[Path, typer.Option(help="FILE.toml for --step-times; a picture of the fit goes beside it.")],
    gpu: options.Gpu = None,
    tensor_parallel_size: options.TensorParallel = 1,
    dtype: options.Dtype = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    first: Annotated[
        int | None, typer.Option(help="Use the stamps of so many requests only; the others still compete. [all]")
    ] = None,
    max_model_len: options.MaxModelLen = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = 0.92,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    num_gpu_blocks_override: options.NumGpuBlocks = None,
    block_size: options.BlockSize = None,
    enable_prefix_caching: options.PrefixCaching = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    async_scheduling: options.AsyncScheduling = True,
    as_json: options.AsJson = False,
) -> None:
    """Fit step times to a server that was measured, for `--step-times FILE.toml`.

    Of steps only the model, the GPU, the ranks and the dtypes count; request stamps are replayed, with the server's
    own flags.

    Examples: kvplan calibrate steps.csv --model llama-3.1-8b --gpu l4 --out l4.toml
    kvplan calibrate bench.json --model llama-3.1-8b --gpu l4 --first 200 --out l4.toml
    """
    settings = dict(locals())
    for name in ("file", "out", "first", "as_json"):
        del settings[name]
    from simulator.calibrate_command import run_calibrate

    run_calibrate(file, settings, first, out, as_json=as_json)
