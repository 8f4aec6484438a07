"""From a scenario to a server: which GPU, how much memory, which groups, how many blocks, what limits.

All "it depends" defaults are resolved here, by vLLM 0.32's rules, so that the rest sees plain numbers.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from kvcache.alignment import align_states
from kvcache.grouping import KVCacheGroup, group_layers
from kvcache.layout import KVCacheLayout, plan_layout
from kvcache.manager import CacheSettings, KVCacheManager
from models_configs import Model, find_model
from simulator.hardware import Gpu, find_gpu
from simulator.latency import ConstantStepTimes, Roofline, StepTimes
from simulator.memory import MemoryOptions, kv_budget_bytes
from simulator.scenario import GIB, MOST_BLOCKS, Scenario, ScenarioError
from simulator.scheduler import Scheduler, SchedulerSettings

__all__ = ["Deployment", "deploy"]

LARGE_GPU_BYTES = 160 * GIB
MEDIUM_GPU_BYTES = 70 * GIB


@dataclass(frozen=True)
class Deployment:
    """One replica's server, before anything has arrived."""

    scenario: Scenario
    model: Model
    gpu: Gpu | None
    kv_budget_bytes: int | None
    """Bytes for KV cache on each rank; None where only the number of blocks was stated."""
    layout: KVCacheLayout
    cache_settings: CacheSettings
    scheduler_settings: SchedulerSettings

    def new_scheduler(self) -> Scheduler:
        """A scheduler with an empty pool. Raises KVCacheError for settings that these layers do not allow."""
        manager = KVCacheManager(self.layout, self.cache_settings)
        return Scheduler(manager, self.scheduler_settings, self.model.reaches)

    @cached_property
    def step_times(self) -> StepTimes:
        """How long steps take on this server."""
        scenario = self.scenario
        if scenario.step_time_s is not None:
            return ConstantStepTimes(scenario.step_time_s)
        if self.gpu is None:
            raise ScenarioError("--gpu: is needed to tell how long steps take; or state --step-time-s")
        return Roofline(self.model, self.gpu, scenario.tensor_parallel_size, scenario.kv_cache_dtype)

    def describe(self) -> dict[str, object]:
        """The pool in plain JSON values."""
        layout = self.layout
        return {
            "num_blocks": layout.num_blocks,
            "bytes_per_block": layout.bytes_per_block,
            "pool_bytes": layout.pool_bytes,
            "remainder_bytes": None if self.kv_budget_bytes is None else self.kv_budget_bytes - layout.pool_bytes,
            "kv_budget_bytes": self.kv_budget_bytes,
            "kv_cache_tokens": layout.kv_cache_tokens,
            "max_concurrency": round(layout.max_concurrency, 6),
            "weight_bytes": self.model.weight_bytes(self.scenario.tensor_parallel_size),
            "groups": [
                {
                    "kind": group.spec.kind,
                    "layers": len(group.layers),
                    "padding_layers": group.num_padding_layers,
                    "block_size": group.spec.block_size,
                    "page_bytes": group.spec.page_bytes,
                }
                for group in layout.groups
            ],
        }

    def resolved_scenario(self) -> dict[str, object]:
        """What was asked for, with every default that depends on others filled in; plain JSON values."""
        limits = self.scheduler_settings
        return {
            **self.scenario.model_dump(mode="json"),
            "model": self.model.name,
            "gpu": None if self.gpu is None else self.gpu.name,
            "dtype": self.model.dtype,
            "block_size": self.cache_settings.block_size,
            "max_model_len": limits.max_model_len,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
        }


def deploy(scenario: Scenario) -> Deployment:
    """The server that a scenario asks for.

    Raises ValueError with one line for a person: UnknownModelError, UnknownGpuError, WeightsDoNotFitError,
    KVCacheError (the pool is too small, the layers cannot be grouped) or ScenarioError.
    """
    model = find_model(scenario.model)
    if scenario.dtype != "auto":
        model = replace(model, dtype=scenario.dtype)
    gpu = None if scenario.gpu is None else find_gpu(scenario.gpu)
    limits = _limits(scenario, model, gpu)
    block_size, groups = _groups(scenario, model, limits.max_model_len)
    budget_bytes = _budget_bytes(scenario, model, gpu, limits)
    layout = plan_layout(
        groups,
        kv_cache_bytes=budget_bytes,
        num_blocks=scenario.num_gpu_blocks_override,
        max_model_len=limits.max_model_len,
        max_in_flight_tokens=limits.max_num_batched_tokens * (1 + scenario.async_scheduling),
    )
    if layout.num_blocks > MOST_BLOCKS:
        raise ScenarioError(
            f"--kv-cache-memory-bytes: gives {layout.num_blocks:,} blocks, {MOST_BLOCKS:,} are too many"
        )
    keeps_states = any(getattr(group.spec, "cache_mode", None) == "align" for group in groups)
    cache_settings = CacheSettings(
        block_size=block_size,
        enable_prefix_caching=scenario.enable_prefix_caching,
        prefix_cache_retention_interval=scenario.retention_interval,
        watermark=scenario.watermark,
    )
    limits = replace(limits, state_block=block_size if keeps_states else None)
    return Deployment(scenario, model, gpu, budget_bytes, layout, cache_settings, limits)


def _limits(scenario: Scenario, model: Model, gpu: Gpu | None) -> SchedulerSettings:
    """Scheduler limits; what is not stated follows from the GPU's memory, as in vLLM's server."""
    max_tokens, max_seqs = _default_limits(gpu)
    max_model_len = scenario.max_model_len or model.max_model_len
    if max_model_len > model.max_model_len:
        raise ScenarioError(f"--max-model-len: {model.name} has at most {model.max_model_len}, got {max_model_len}")
    max_seqs = scenario.max_num_seqs or max_seqs
    max_tokens = scenario.max_num_batched_tokens or min(max_tokens, max_seqs * max_model_len)
    if scenario.max_num_seqs is None:
        max_seqs = min(max_seqs, max_tokens)
    if max_tokens < max_seqs:
        raise ScenarioError(f"--max-num-batched-tokens: must be at least --max-num-seqs {max_seqs}, got {max_tokens}")
    return SchedulerSettings(
        max_model_len=max_model_len,
        max_num_seqs=max_seqs,
        max_num_batched_tokens=max_tokens,
        long_prefill_token_threshold=scenario.long_prefill_token_threshold,
        scheduling_policy=scenario.scheduling_policy,
        reserve_full_isl=scenario.scheduler_reserve_full_isl,
        async_scheduling=scenario.async_scheduling,
    )


def _default_limits(gpu: Gpu | None) -> tuple[int, int]:
    """(tokens, requests) of one step, at most (vLLM 0.32, `engine/arg_utils.py`, a server's defaults)."""
    if gpu is None:
        return 8192, 1024
    if gpu.memory_bytes >= LARGE_GPU_BYTES:
        return 16384, 1024
    if gpu.memory_bytes >= MEDIUM_GPU_BYTES and not gpu.name.startswith("a100"):
        return 8192, 1024
    return 2048, 256


def _groups(scenario: Scenario, model: Model, max_model_len: int) -> tuple[int, list[KVCacheGroup]]:
    """(tokens in a block, KV cache groups) of the model on one rank."""
    if not model.can_split(scenario.tensor_parallel_size):
        raise ScenarioError(
            f"--tensor-parallel-size: the heads or channels of {model.name} cannot be split evenly,"
            f" got {scenario.tensor_parallel_size}"
        )
    specs = model.kv_cache_specs(
        block_size=scenario.block_size,
        tensor_parallel=scenario.tensor_parallel_size,
        kv_cache_dtype=scenario.kv_cache_dtype,
        mamba_cache_dtype=scenario.mamba_cache_dtype,
        mamba_ssm_cache_dtype=scenario.mamba_ssm_cache_dtype,
    )
    specs = align_states(specs, scenario.block_size, scenario.enable_prefix_caching, max_model_len)
    attention_blocks = [spec.block_size for spec in specs if spec.kind != "mamba"]
    block_size = attention_blocks[0] if attention_blocks else specs[0].block_size
    return block_size, group_layers(specs, hybrid=not scenario.disable_hybrid_kv_cache_manager)


def _budget_bytes(scenario: Scenario, model: Model, gpu: Gpu | None, limits: SchedulerSettings) -> int | None:
    """Bytes for KV cache on each rank; None where the number of blocks is stated instead."""
    if scenario.num_gpu_blocks_override is not None:
        return None
    if scenario.kv_cache_memory_bytes is not None:
        return scenario.kv_cache_memory_bytes
    if gpu is None:
        raise ScenarioError(
            "--gpu: is needed to tell how much memory is left for KV cache; or state --kv-cache-memory-bytes"
            " or --num-gpu-blocks-override"
        )
    return kv_budget_bytes(
        model,
        gpu,
        MemoryOptions(
            tensor_parallel=scenario.tensor_parallel_size,
            gpu_memory_utilization=scenario.gpu_memory_utilization,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
        ),
    )
