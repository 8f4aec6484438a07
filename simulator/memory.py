"""What a device has left for KV cache, after weights and all else that a server keeps there.

    # device memory of one rank
    # 0 ........................................ gpu_memory_utilization ..... all of it
    #  weights | beside them | KV cache          | not asked for

vLLM measures what it needs beside the weights with a trial run; here it is estimated from what that run
allocates (vLLM 0.32, `v1/worker/gpu/model_runner.py`, `profile_run`). All estimates are in this module:
`estimate_activation_bytes`, `estimate_sampler_bytes`, `estimate_cuda_graph_bytes` and
`estimate_runtime_bytes`. Where a server's own figure is known, give it as `kv_cache_memory_bytes`.
"""

import math
from dataclasses import dataclass, replace

from models_configs import Model
from simulator.hardware import Gpu

__all__ = [
    "MemoryBudget",
    "MemoryOptions",
    "WeightsDoNotFitError",
    "estimate_activation_bytes",
    "estimate_cuda_graph_bytes",
    "estimate_runtime_bytes",
    "estimate_sampler_bytes",
    "kv_budget_bytes",
    "plan_memory",
]

_GIB = 2**30
_MIB = 2**20

SAMPLER_BYTES_PER_LOGIT = 4 + 1 / 8
"""For each request and word: how often it was generated (int32), whether the prompt has it (one bit).

Allocated once for `max_num_seqs` requests, used or not (vLLM 0.32, `v1/worker/gpu/sample/penalties.py`).
"""

CUDA_GRAPH_BYTES_PER_LAYER = 20 * _MIB
"""Of the decode graphs of all batch sizes, about 51 of them.

Servers have printed 0.67 GiB for 32 layers of Llama's shape, 0.65 for Qwen3.5-9B (32), 0.39 and 1.03 for
gpt-oss-20b (24) and 120b (36), but also 0.10 for Qwen3-0.6B (28) and 2.37 for Qwen3-Next (48): 4 to 50 MiB
a layer, right within a factor of two as a rule.
"""

RUNTIME_BYTES = round(0.13 * _GIB)
"""What the driver and libraries take once the server runs on one device.

From logs of H100 servers (github llm-d/llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md).
"""

COMMUNICATION_BYTES = round(0.42 * _GIB)
"""What they take more for buffers between ranks: 0.55 GiB in all, in the same logs."""

_LARGEST_TENSOR_PARALLEL = 64


class WeightsDoNotFitError(ValueError):
    """A device has no room for KV cache after the weights; the message is one line for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What a server's command line says about memory; the defaults are those of vLLM on a large GPU."""

    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.92
    """Part of the device's memory that the server may take."""
    max_num_batched_tokens: int = 8192
    """Tokens of one step, at most."""
    max_num_seqs: int = 1024
    """Requests of one step, at most."""
    enforce_eager: bool = False
    """No CUDA graphs."""
    kv_cache_memory_bytes: int | None = None
    """Given outright, for each rank: nothing is estimated."""

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where the memory of one rank goes, in bytes."""

    offered_bytes: int
    """The device's memory times the utilization, rounded up."""
    weight_bytes: int
    """As loaded: with the layers that draft, and what kernels add to quantized experts."""
    activation_bytes: int
    sampler_bytes: int
    cuda_graph_bytes: int
    runtime_bytes: int

    @property
    def beside_weights_bytes(self) -> int:
        """All that is estimated."""
        return self.activation_bytes + self.sampler_bytes + self.cuda_graph_bytes + self.runtime_bytes

    @property
    def kv_bytes(self) -> int:
        """What is left for KV cache; negative where something is missing."""
        return self.offered_bytes - self.weight_bytes - self.beside_weights_bytes


def estimate_activation_bytes(model: Model, options: MemoryOptions) -> int:
    """Peak of the trial run: the widest layer for a full step, or the logits of as many requests as can run.

    While logits are computed the step's hidden states are still there.
    """
    layer_elements = options.max_num_batched_tokens * model.activation_elements(options.tensor_parallel)
    hidden_elements = options.max_num_batched_tokens * model.hidden_size
    logit_elements = min(options.max_num_seqs, options.max_num_batched_tokens) * model.vocab_size
    return model.element_bytes * max(layer_elements, hidden_elements + logit_elements)


def estimate_sampler_bytes(model: Model, options: MemoryOptions) -> int:
    """What sampling keeps for each request that can run; every rank keeps all of it."""
    return math.ceil(options.max_num_seqs * model.vocab_size * SAMPLER_BYTES_PER_LOGIT)


def estimate_cuda_graph_bytes(model: Model) -> int:
    """Memory of the captured graphs, which vLLM sets aside since 0.21."""
    return len(model.layers) * CUDA_GRAPH_BYTES_PER_LAYER


def estimate_runtime_bytes(options: MemoryOptions) -> int:
    """What is taken outside the tensors."""
    return RUNTIME_BYTES + (COMMUNICATION_BYTES if options.tensor_parallel > 1 else 0)


def plan_memory(model: Model, gpu: Gpu, options: MemoryOptions) -> MemoryBudget:
    """Where the memory of each rank goes, whether or not it suffices."""
    tensor_parallel = options.tensor_parallel
    return MemoryBudget(
        offered_bytes=math.ceil(gpu.memory_bytes * options.gpu_memory_utilization),
        weight_bytes=model.weight_bytes(tensor_parallel)
        + model.draft_weight_bytes(tensor_parallel)
        + model.kernel_padding_bytes(tensor_parallel),
        activation_bytes=estimate_activation_bytes(model, options),
        sampler_bytes=estimate_sampler_bytes(model, options),
        cuda_graph_bytes=0 if options.enforce_eager else estimate_cuda_graph_bytes(model),
        runtime_bytes=estimate_runtime_bytes(options),
    )


def kv_budget_bytes(model: Model, gpu: Gpu, options: MemoryOptions) -> int:
    """Bytes left for KV cache on each rank.

    Raises WeightsDoNotFitError where nothing is left, and ValueError where the model cannot be split
    over so many ranks.
    """
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    budget = plan_memory(model, gpu, options)
    if budget.kv_bytes <= 0:
        raise WeightsDoNotFitError(_explain_shortage(model, gpu, options, budget))
    return budget.kv_bytes


def _explain_shortage(model: Model, gpu: Gpu, options: MemoryOptions, budget: MemoryBudget) -> str:
    def gib(num_bytes: int) -> str:
        return f"{num_bytes / _GIB:.1f} GiB"

    need = f"{gib(budget.weight_bytes)} of weights"
    if budget.weight_bytes < budget.offered_bytes:
        need += f" and about {gib(budget.beside_weights_bytes)} beside them"
    message = (
        f"{model.name} needs {need} on each of {options.tensor_parallel} {gpu.name}, "
        f"which offers {gib(budget.offered_bytes)} ({options.gpu_memory_utilization:.0%} of {gib(gpu.memory_bytes)})"
    )
    if tensor_parallel := _smallest_tensor_parallel(model, gpu, options):
        message += f"; --tensor-parallel-size {tensor_parallel} would fit"
    return message


def _smallest_tensor_parallel(model: Model, gpu: Gpu, options: MemoryOptions) -> int | None:
    tensor_parallel = 1
    while tensor_parallel <= _LARGEST_TENSOR_PARALLEL:
        wider = replace(options, tensor_parallel=tensor_parallel)
        if model.can_split(tensor_parallel) and plan_memory(model, gpu, wider).kv_bytes > 0:
            return tensor_parallel
        tensor_parallel *= 2
    return None
