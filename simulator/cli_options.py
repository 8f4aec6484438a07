"""The command line's flags: vLLM's names and meanings wherever vLLM has one.

Values are checked by `scenario.Scenario`, so those with a grammar of their own (bytes, retention) come as text.
"""

from pathlib import Path
from typing import Annotated

import typer

TRAFFIC, MEMORY, CACHE, SCHEDULER = "Traffic", "Model and memory", "KV cache", "Scheduler"
FLEET, STUDY, OUTPUT = "Fleet", "Study", "Output"

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="Catalogue name, Hugging Face id, or path to a config.json.")
]
TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="Trace file, plain or gzip-compressed.")]


def _option(panel: str, help_text: str, *names: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False)
    return info


Trace = Annotated[
    Path | None,
    _option(
        TRAFFIC,
        "Trace to replay (Mooncake JSONL, Azure CSV; coding-agent sessions). Without it: synthetic conversations.",
    ),
]
WasteTrace = Annotated[
    Path | None,
    _option(TRAFFIC, "Trace to replay under each grouping; with --all-models only its lengths count.", "--trace"),
]
RequestRate = Annotated[
    float | None, _option(TRAFFIC, "Instead of a trace: so many requests a second, as a Poisson process.")
]
InputLen = Annotated[int | None, _option(TRAFFIC, "Prompt tokens of each of them.")]
OutputLen = Annotated[int | None, _option(TRAFFIC, "Output tokens of each of them.")]
NumRequests = Annotated[int | None, _option(TRAFFIC, "Replay only the first so many requests.")]
RateScale = Annotated[float, _option(TRAFFIC, "Let requests arrive so many times as fast.")]
SpreadTicks = Annotated[bool, _option(TRAFFIC, "Spread arrivals with equal stamps over the trace's clock tick.")]
Seed = Annotated[int, _option(TRAFFIC, "Seed of everything random.")]
Concurrency = Annotated[
    int | None,
    _option(TRAFFIC, "Keep so many requests in flight, as serving benchmarks do: the next arrives when one has ended."),
]
NumWarmups = Annotated[
    int | None,
    _option(TRAFFIC, "Leave so many requests, the first to arrive, out of latencies. [as many as --concurrency, or 0]"),
]
ConcurrentSessions = Annotated[
    int | None, _option(TRAFFIC, "Keep so many sessions open, whose calls wait for one another; at most, with a rate.")
]
SessionRate = Annotated[float | None, _option(TRAFFIC, "Let so many sessions start a second, as a Poisson process.")]
NumSessions = Annotated[int | None, _option(TRAFFIC, "Replay only the first so many sessions.")]
MaxThinkTime = Annotated[float | None, _option(TRAFFIC, "Cut longer think times of sessions to so many seconds.")]

Gpu = Annotated[str | None, _option(MEMORY, "Accelerator of each rank: h100-80gb, a100-80gb, h200, b200, l4, ...")]
StepTime = Annotated[float | None, _option(MEMORY, "Let every step take so many seconds, whatever the GPU.")]
StepTimes = Annotated[
    str,
    _option(
        MEMORY,
        "How long steps take: roofline, silicon (kernels that were measured), or a FILE.toml of `kvplan calibrate`."
        " [roofline]",
        "--step-times",
    ),
]
TensorParallel = Annotated[int, _option(MEMORY, "Ranks that share each layer. [1]", "--tensor-parallel-size", "-tp")]
PipelineParallel = Annotated[
    int, _option(MEMORY, "Stages that share the layers. [1]", "--pipeline-parallel-size", "-pp")
]
ExpertParallel = Annotated[
    bool, _option(MEMORY, "Deal experts out whole instead of in slices.", "--enable-expert-parallel", "-ep")
]
EnforceEager = Annotated[bool, _option(MEMORY, "Capture no CUDA graphs: they take memory.", "--enforce-eager")]
SpeculativeConfig = Annotated[
    str | None,
    _option(MEMORY, 'Who drafts: {"method": "mtp", "num_speculative_tokens": 1}.', "--speculative-config", "-sc"),
]
Dtype = Annotated[str, _option(MEMORY, "Of weights and activations: auto, bfloat16, float16, float32.")]
Quantization = Annotated[
    str | None,
    _option(
        MEMORY,
        "How weights are stored: fp8, modelopt, modelopt_fp4, mxfp4, awq, gptq, ... [as the checkpoint has them]",
        "--quantization",
        "-q",
    ),
]
MaxModelLen = Annotated[
    str | None, _option(MEMORY, 'Tokens of the longest request; "auto": the longest that fits. [the model\'s own]')
]
GpuMemoryUtilization = Annotated[float, _option(MEMORY, "Part of the GPU's memory that the server takes. [0.92]")]
KvCacheMemoryBytes = Annotated[str | None, _option(MEMORY, "KV cache of each rank, stated outright: 40GiB.")]
NumGpuBlocks = Annotated[
    int | None, _option(MEMORY, "Blocks of the pool, stated outright.", "--num-gpu-blocks-override")
]

BlockSize = Annotated[
    int | None, _option(CACHE, "Tokens in one block, before alignment with Mamba states. [16; 64 for latent attention]")
]
TraceBlockSize = Annotated[int, _option(CACHE, "Tokens in one block. [16]", "--block-size")]
MambaBlockSize = Annotated[
    int | None, _option(CACHE, "Tokens between cached states, where no layer attends. [as attention's]")
]
KvCacheDtype = Annotated[str, _option(CACHE, "Of keys and values: auto, bfloat16, fp8, ...")]
MambaCacheDtype = Annotated[str, _option(CACHE, "Of Mamba's convolution state. [auto]")]
MambaSsmCacheDtype = Annotated[str, _option(CACHE, "Of Mamba's recurrent state. [auto]")]
PrefixCaching = Annotated[
    bool | None,
    _option(
        CACHE,
        "Reuse the blocks of equal prefixes. [on where a layer attends]",
        "--enable-prefix-caching/--no-enable-prefix-caching",
    ),
]
Retention = Annotated[
    str | None,
    _option(
        CACHE,
        'Tokens between kept windows and states: 0, a number, or "dense". [0]',
        "--prefix-cache-retention-interval",
    ),
]
DisableHybrid = Annotated[bool, _option(CACHE, "Keep windows and chunks whole.", "--disable-hybrid-kv-cache-manager")]
Grouping = Annotated[
    str | None,
    _option(
        CACHE,
        "Which layers share a block table: vllm, per-layer, smallest, gcd, search, unified, packed, document-mamba or"
        " two-level. [vllm]",
    ),
]
Semantics = Annotated[
    str,
    _option(
        CACHE,
        "Whose rules hold where they differ: vllm, or document: the hybrid manager's design document (every block"
        " cached, the smallest type's group size, one queue of free blocks, admission by the first chunk). [vllm]",
    ),
]
KvOffloadingSize = Annotated[
    float | None, _option(CACHE, "GiB of host memory, of all ranks, for blocks that the pool evicts. [none]")
]
KvOffloadingBandwidth = Annotated[
    str | None, _option(CACHE, "Of each rank's link to the host, one way: 50GB/s. [80% of the GPU's link]")
]

MaxNumSeqs = Annotated[int | None, _option(SCHEDULER, "Requests of one step, at most. [by GPU]")]
MaxNumBatchedTokens = Annotated[int | None, _option(SCHEDULER, "Tokens of one step, at most. [by GPU]")]
AsyncScheduling = Annotated[
    bool,
    _option(SCHEDULER, "Plan each step while the one before it runs. [on]", "--async-scheduling/--no-async-scheduling"),
]
LongPrefill = Annotated[
    int, _option(SCHEDULER, "Tokens that one prompt may take of a step. [0: all]", "--long-prefill-token-threshold")
]
Policy = Annotated[str, _option(SCHEDULER, "fcfs or priority. [fcfs]")]
ReserveFullIsl = Annotated[
    bool | None,
    _option(
        SCHEDULER,
        "Admit a request only if its whole prompt fits now. [on]",
        "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
    ),
]
Watermark = Annotated[float, _option(SCHEDULER, "Part of the pool that an admission must leave free. [0]")]

Replicas = Annotated[int, _option(FLEET, "So many equal replicas behind a router. [1]")]
Replica = Annotated[
    list[str] | None,
    _option(
        FLEET,
        "Replicas that differ from the other flags, and how many: gpu=h200,tensor_parallel_size=2,count=2; given once"
        " for each kind. With role=prefill or role=decode: of a disaggregated fleet.",
    ),
]
Router = Annotated[
    str | None,
    _option(
        FLEET,
        "round-robin, least-loaded, power-of-two-choices, session-affinity, prefix-aware or one-queue. [round-robin]",
    ),
]
RouterStaleness = Annotated[
    float | None, _option(FLEET, "How old a prefix-aware router's knowledge of the caches may be. [0]")
]
Outages = Annotated[
    list[str] | None,
    _option(
        FLEET,
        "A replica breaks, and can start again after a while or never: replica=1,at=600,for=120 (seconds); may be given"
        " several times.",
        "--outage",
    ),
]
RandomOutages = Annotated[
    str | None,
    _option(
        FLEET, "Each replica breaks now and then and is mended, after so many seconds on average: mtbf=3600,mttr=120."
    ),
]
OnFailure = Annotated[
    str | None,
    _option(
        FLEET,
        "What becomes of requests at a replica that breaks: retry (elsewhere, from scratch), retry=3 (at most so often)"
        " or lose. [retry]",
    ),
]
Drains = Annotated[
    list[str] | None,
    _option(
        FLEET,
        "A replica takes no more requests, serves those that it has and is off, for a while or for good:"
        " replica=1,at=600,for=300; may be given several times.",
        "--drain",
    ),
]
ColdStart = Annotated[float | None, _option(FLEET, "Seconds until a replica that starts takes requests. [0]")]
Autoscale = Annotated[
    str | None,
    _option(
        FLEET,
        "Start and drain replicas so that each has its share: running=32,min=1,max=8,every=15,cooldown=60, or"
        " kv-usage=0.7 instead of running.",
    ),
]
PrefillReplicas = Annotated[
    int | None, _option(FLEET, "So many replicas compute prompts and hand their blocks over. Each side has its router.")
]
DecodeReplicas = Annotated[int | None, _option(FLEET, "So many others generate the outputs.")]
LinkGbps = Annotated[
    float | None,
    _option(FLEET, "What a replica can send, and receive, in gigabits per second, over all of its ranks. [400]"),
]
LinkLatency = Annotated[float | None, _option(FLEET, "What a transfer takes beside its bytes. [0.00001]")]
BackWith = Annotated[
    str | None,
    _option(MEMORY, "Make the pool of real tensors on cpu or cuda, write and read it as the run does, and measure it."),
]
PoolFraction = Annotated[
    float, _option(MEMORY, "Of the pool's bytes that --back-with allocates: thinner pages, the same run. [1]")
]

RequestLen = Annotated[
    list[int] | None, _option(OUTPUT, "Say too what a request of so many tokens takes; may be given several times.")
]
Curve = Annotated[
    Path | None, _option(OUTPUT, "Draw tokens, concurrency and bytes against length and ranks into this PNG or SVG.")
]
Out = Annotated[Path | None, _option(OUTPUT, "Run folder. [runs/<model>-<time>]")]
Timeline = Annotated[
    Path | None, _option(OUTPUT, "Write the run as a timeline for the Perfetto viewer: FILE.json.gz or FILE.json.")
]
Picture = Annotated[Path | None, _option(OUTPUT, "Where the picture goes. [<trace>.png in this folder]", "--out")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `kvplan simulate` wrote.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id, as requests.parquet has it.")]
RunTrace = Annotated[
    Path | None, typer.Option("--trace", help="Where the run's trace is, if it is not there any more.")
]
StoryPicture = Annotated[Path | None, _option(OUTPUT, "Where the picture goes. [RUN/explain-REQUEST.png]", "--out")]
AsJson = Annotated[bool, _option(OUTPUT, "Print the summary as JSON, and nothing else.", "--json")]
NoReport = Annotated[bool, _option(OUTPUT, "Write the tables, but no report.", "--no-report")]

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="What to vary: see docs/studies.md.")]
StudyOut = Annotated[Path | None, _option(OUTPUT, "Folder of the study. [studies/<name>]", "--out")]
Workers = Annotated[int | None, _option(STUDY, "Processes that run points side by side. [one for each core]")]
ExecutorAddress = Annotated[
    str | None, _option(STUDY, "Run points on a Dask cluster instead: dask://HOST:PORT, its scheduler.", "--executor")
]
PricesFile = Annotated[
    Path | None, _option(STUDY, "Prices by accelerator (TOML) that replace those kvplan knows.", "--prices")
]
MaxPoints = Annotated[int, _option(STUDY, "Refuse a study of more points than this. [1000]")]
FirstRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `kvplan simulate` wrote.")]
SecondRun = Annotated[Path, typer.Argument(metavar="OTHER", help="Another one; changes are from RUN to it.")]
