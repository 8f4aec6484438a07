"""What a person may ask for: one validated description of a run, with vLLM's flags and defaults.

Everything is checked here once; the rest of the simulator trusts it. A mistake is a `ScenarioError` of
one line that names the flag, the value and, where there is one, the nearest right one.
"""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

__all__ = ["Scenario", "ScenarioError", "parse_bytes"]

GIB = 1 << 30
MOST_BLOCKS = 100_000_000
"""Of a pool: each costs this program some bytes too."""
SPECULATIVE_EXAMPLE = '{"method": "mtp", "num_speculative_tokens": 1}'
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": GIB, "ti": 2**40}


class ScenarioError(ValueError):
    """A scenario that cannot be run as it is written; the message is one line for a person."""


def parse_bytes(value: object) -> object:
    """A number of bytes, or text such as "40GiB", "40G" or "1.5e9"; anything else comes back for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d{1,2})?)\s*([kmgt]?i?)b?\s*", value, re.IGNORECASE)
    if match is None or match[2].lower() not in UNITS:
        raise ValueError(f"must be a number of bytes such as 42949672960 or 40GiB, got {value!r}")
    return int(float(match[1]) * UNITS[match[2].lower()])


def _parse_method(value: object) -> object:
    """vLLM has a name for the layers of each model that has some: "deepseek_mtp", "qwen3_next_mtp", ..."""
    return "mtp" if isinstance(value, str) and value.endswith("_mtp") else value


def _parse_quantization(value: object) -> object:
    """Other kernels for the same weights, and vLLM's newer name for one scale a matrix."""
    same = {"awq_marlin": "awq", "gptq_marlin": "gptq", "fp8_per_tensor": "fp8"}
    return same.get(value, value) if isinstance(value, str) else value


def _parse_length(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _parse_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f"must be a JSON object such as {SPECULATIVE_EXAMPLE}, got {value!r}") from None


def _parse_retention(value: object) -> object:
    if isinstance(value, str) and value != "dense":
        if not value.isdigit():
            raise ValueError(f'must be 0, a number of tokens or "dense", got {value!r}')
        return int(value)
    return value


def _parse_rate(value: object) -> object:
    """Bytes a second, as bytes are written; "/s" or "ps" may follow."""
    return parse_bytes(re.sub(r"(/|p)s\s*$", "", value, flags=re.IGNORECASE) if isinstance(value, str) else value)


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
Rate = Annotated[int, BeforeValidator(_parse_rate), Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
AttentionDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"]
Quantization = Literal[
    "fp8", "fp8_per_block", "modelopt", "modelopt_fp4", "mxfp4", "awq", "gptq", "auto-round", "compressed-tensors"
]
StateDtype = Literal["auto", "bfloat16", "float16", "float32"]


class SpeculativeConfig(BaseModel):
    """Who drafts how many tokens for a step to check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Annotated[Literal["mtp", "eagle", "eagle3", "ngram"], BeforeValidator(_parse_method)]
    """Layers of the model's own, a layer trained for it, or a search in the prompt."""
    num_speculative_tokens: Count
    model: str | None = None
    """Of the drafter: its layer is taken to be like the model's own."""
    draft_tensor_parallel_size: Count | None = None
    prompt_lookup_max: Count | None = None
    prompt_lookup_min: Count | None = None
    """These change what is drafted, not what is kept."""


class Scenario(BaseModel):
    """One simulation, as asked for: a field per flag of `kvplan simulate`, None where the default depends on others."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str
    """Short catalogue name or Hugging Face id."""
    gpu: str | None = None
    """Accelerator of each rank."""
    step_time_s: Annotated[float, Field(gt=0)] | None = None
    """Every step takes so many seconds; None: as `step_times` has it."""
    step_times: Annotated[str, Field(min_length=1)] = "roofline"
    """"roofline", "silicon" (kernels that were measured), or a file of `kvplan calibrate`."""

    # Traffic.
    trace: Path | None = None
    """Trace file; None: an embedded synthetic conversation workload."""
    request_rate: Annotated[float, Field(gt=0)] | None = None
    """Instead of a trace: Poisson arrivals of so many requests a second, of constant lengths."""
    input_len: Count | None = None
    """Prompt tokens of each such request."""
    output_len: Count | None = None
    num_requests: Count | None = None
    """Only the first so many requests of the trace."""
    rate_scale: Annotated[float, Field(gt=0)] = 1.0
    """Arrivals come so many times as fast."""
    spread_ticks: bool = False
    """Arrivals with equal stamps are spread over the tick of the trace's clock."""
    seed: Annotated[int, Field(ge=0)] = 0
    concurrency: Count | None = None
    """Closed loop: so many requests are in flight, whenever they would have arrived."""
    num_warmups: Annotated[int, Field(ge=0)] | None = None
    """So many requests, the first to arrive, count in no latency; None: of `concurrency` the first in flight."""
    concurrent_sessions: Count | None = None
    """Closed loop: at most so many sessions are open, each of which waits for its calls."""
    session_rate: Annotated[float, Field(gt=0)] | None = None
    """Sessions start so many times a second, as a Poisson process; None: one starts when another has ended."""
    num_sessions: Count | None = None
    """Only the first so many sessions."""
    max_think_time_s: Annotated[float, Field(ge=0)] | None = None
    """Longer think times are cut to it."""

    # The engine, as a server's command line has it.
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    enable_expert_parallel: bool = False
    """Experts are dealt out whole, not cut into slices: the same bytes on each rank."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: Annotated[Quantization | None, BeforeValidator(_parse_quantization)] = None
    """How weights are stored; None: as the checkpoint has them."""
    max_model_len: Annotated[Count | Literal["auto"] | None, BeforeValidator(_parse_length)] = None
    """"auto": the longest that fits."""
    enforce_eager: bool = False
    """No CUDA graphs are captured, so none take memory."""
    speculative_config: Annotated[SpeculativeConfig | None, BeforeValidator(_parse_json)] = None
    gpu_memory_utilization: Share = 0.92
    kv_cache_memory_bytes: Bytes | None = None
    num_gpu_blocks_override: Annotated[int, Field(ge=2, le=MOST_BLOCKS)] | None = None
    block_size: Count | None = None
    """None: 16, or 64 where a latent vector is kept."""
    mamba_block_size: Count | None = None
    kv_cache_dtype: AttentionDtype = "auto"
    mamba_cache_dtype: StateDtype = "auto"
    mamba_ssm_cache_dtype: StateDtype = "auto"
    enable_prefix_caching: bool | None = None
    """None: on, unless no layer attends to tokens."""
    prefix_cache_retention_interval: Annotated[
        Annotated[int, Field(ge=0)] | Literal["dense"] | None, BeforeValidator(_parse_retention)
    ] = None
    """None: 0, or "dense" under the document's semantics."""
    disable_hybrid_kv_cache_manager: bool = False
    grouping: str | None = None
    """Which layers share a block table (`kvcache.policies`); None: as the semantics have it."""
    semantics: Literal["vllm", "document"] = "vllm"
    """Whose rules hold where they differ: vLLM 0.32's, or those of the design document, which it has moved on from."""
    kv_offloading_size: Annotated[float, Field(ge=0)] | None = None
    """GiB of host memory for blocks that the device evicts, of all ranks together; None or 0: there is no such tier."""
    kv_offloading_bandwidth: Rate | None = None
    """Bytes a second of each rank's link to the host, one way; None: what copies reach of the GPU's own."""
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    async_scheduling: bool = True
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: bool | None = None
    """None: on, or off under the document's semantics."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0

    # The pool as real memory.
    back_with: Literal["cpu", "cuda"] | None = None
    """Allocate the pool as tensors there, and really write and read what the run does; None: blocks are numbers."""
    pool_fraction: Share = 1.0
    """Of the bytes behind each slot, at least; the run itself stays the same."""

    def __init__(self, **values: Any) -> None:
        """Raise ScenarioError for an unknown field or a value out of range."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ScenarioError(_first_line(error)) from None

    @property
    def num_left_out(self) -> int:
        """Requests, the first to arrive, that count in no latency."""
        return (self.concurrency or 0) if self.num_warmups is None else self.num_warmups

    @property
    def retention_interval(self) -> int | None:
        """Tokens between retained windows and states; None keeps all."""
        interval = self.prefix_cache_retention_interval
        if interval is None:
            return None if self.semantics == "document" else 0
        return None if interval == "dense" else int(interval)

    @property
    def reserves_full_isl(self) -> bool:
        """Whether a request is admitted only if its whole prompt fits."""
        stated = self.scheduler_reserve_full_isl
        return self.semantics == "vllm" if stated is None else stated

    @property
    def has_sessions(self) -> bool:
        """Whether the traffic is sessions, whose calls wait for one another."""
        return self.concurrent_sessions is not None or self.session_rate is not None

    @property
    def is_closed_loop(self) -> bool:
        """Whether requests arrive when others have ended, and not at times of their own."""
        return self.has_sessions or self.concurrency is not None

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens that are drafted for each step."""
        return 0 if self.speculative_config is None else self.speculative_config.num_speculative_tokens


def _first_line(error: ValidationError) -> str:
    """The first mistake, in the words of the command line."""
    mistake = error.errors()[0]
    name = str(mistake["loc"][0])
    flag = "--" + name.replace("_", "-") if name != "model" else "model"
    if mistake["type"] == "extra_forbidden":
        near = get_close_matches(name, Scenario.model_fields, n=1)
        return f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    if mistake["type"] == "missing":
        return f"{flag}: is needed"
    message = mistake["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    return message if "got" in message and message.startswith(flag) else _with_value(flag, message, mistake["input"])


def _with_value(flag: str, message: str, value: object) -> str:
    if "got" in message:
        return f"{flag}: {message}"
    near = get_close_matches(str(value), re.findall(r"'([^']+)'", message), n=1)
    return f"{flag}: {message}, got {value!r}" + (f"; did you mean {near[0]!r}?" if near else "")
