"""From a server's command line to its memory: which GPU, which limits, which KV cache groups, how many blocks.

All "it depends" defaults are resolved here, by vLLM 0.32's rules, so that the rest sees plain numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvcache.grouping import KVCacheGroup
from kvcache.layout import KVCacheLayout, fit_max_model_len, plan_layout
from kvcache.policies import GroupingPolicy, KeptLayers, policy_named
from kvcache.pool_kinds import DOCUMENT, PoolKind
from kvcache.specs import KVCacheSpec
from models_configs import Layer, Model, QuantizationError, find_model
from models_configs.attention import FullAttention
from simulator.hardware import Gpu, find_gpu
from simulator.memory import MemoryOptions, kv_budget_bytes
from simulator.scenario import GIB, MOST_BLOCKS, Scenario, ScenarioError
from simulator.scheduler import SchedulerSettings

__all__ = ["Server", "Stage", "plan_server"]

LARGE_GPU_BYTES = 160 * GIB
MEDIUM_GPU_BYTES = 70 * GIB
BLOCK_SIZE = 16
LATENT_BLOCK_SIZE = 64
"""Of FlashMLA's kernels."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline: what each of its ranks holds."""

    model: Model
    groups: tuple[KVCacheGroup, ...]
    """The model's groups, each with those of its layers that are in this stage."""
    budget_bytes: int | None
    """For KV cache on each rank; None where the number of blocks was stated instead."""


@dataclass(frozen=True)
class Server:
    """What a command line asks for, resolved, whether or not it would start."""

    scenario: Scenario
    model: Model
    gpu: Gpu | None
    limits: SchedulerSettings
    block_size: int
    """Tokens in a block of an attention layer, aligned with the states."""
    enable_prefix_caching: bool
    kept: KeptLayers
    """What each layer that keeps something keeps, before blocks are aligned."""
    specs: tuple[KVCacheSpec, ...]
    """The same, aligned."""
    groups: tuple[KVCacheGroup, ...]
    """Of all layers."""
    pool_kind: PoolKind
    stages: tuple[Stage, ...]

    @cached_property
    def max_in_flight_tokens(self) -> int:
        """Tokens that can be scheduled but not yet settled: a batch in each stage, and one ahead if asynchronous."""
        num_batches = len(self.stages) + self.scenario.async_scheduling
        return self.limits.max_num_batched_tokens * num_batches

    @cached_property
    def num_blocks(self) -> int:
        """Blocks of the pool: as many as the poorest stage can hold."""
        stated = self.scenario.num_gpu_blocks_override
        budgets = [
            stage.budget_bytes // self.pool_kind.block_bytes(stage.groups)
            for stage in self.stages
            if stage.budget_bytes is not None and stage.groups
        ]
        return stated or min(budgets, default=1)

    def layout(self) -> KVCacheLayout:
        """The pool. Raises PoolTooSmallError where the server would refuse to start."""
        max_model_len = self.limits.max_model_len
        if self.scenario.max_model_len == "auto":
            max_model_len = fit_max_model_len(
                self.groups, self.num_blocks, max_model_len, self.max_in_flight_tokens, self.pool_kind
            )
        for stage in self.stages:
            plan_layout(
                stage.groups,
                kv_cache_bytes=stage.budget_bytes,
                num_blocks=self.scenario.num_gpu_blocks_override,
                max_model_len=max_model_len,
                max_in_flight_tokens=self.max_in_flight_tokens,
                pool_kind=self.pool_kind,
            )
        if self.num_blocks > MOST_BLOCKS:
            raise ScenarioError(
                f"--kv-cache-memory-bytes: gives {self.num_blocks:,} blocks, {MOST_BLOCKS:,} are too many"
            )
        layout = KVCacheLayout(
            self.groups, self.num_blocks, max_model_len, self.max_in_flight_tokens, pool_kind=self.pool_kind
        )
        budgets = [stage.budget_bytes for stage in self.stages if stage.budget_bytes is not None]
        if not budgets or not self.groups or len(self.stages) > 1:
            return layout
        return replace(layout, remainder_bytes=budgets[0] - layout.pool_bytes)


def plan_server(scenario: Scenario, policy: GroupingPolicy | None = None) -> Server:
    """Resolve a command line.

    `policy` groups the layers instead of the one that the scenario names: one that was told the lengths of a trace.
    Raises ValueError with one line for a person: UnknownModelError, UnknownGpuError, WeightsDoNotFitError,
    KVCacheError (the layers cannot be grouped) or ScenarioError.
    """
    model = _with_drafters(scenario, _found(scenario))
    if scenario.dtype != "auto":
        model = replace(model, dtype=scenario.dtype)
    gpu = None if scenario.gpu is None else find_gpu(scenario.gpu)
    _check_ranks(scenario, model)
    limits = _limits(scenario, model, gpu)
    layers = _kept_layers(scenario, model)
    specs = [spec for _, spec in layers]
    caching = scenario.enable_prefix_caching
    if caching is None:
        caching = not specs or any(spec.kind != "mamba" for spec in specs)
    if scenario.mamba_block_size is not None and not caching:
        raise ScenarioError("--mamba-block-size: needs --enable-prefix-caching")
    policy = policy or _policy(scenario)
    kept = _kept(scenario, specs, caching, limits.max_model_len)
    specs = policy.align(kept)
    groups = tuple(policy.groups(specs))
    attention_blocks = [spec.block_size for spec in specs if spec.kind != "mamba"]
    return Server(
        scenario=scenario,
        model=model,
        gpu=gpu,
        limits=limits,
        block_size=(attention_blocks or [spec.block_size for spec in specs] or [BLOCK_SIZE])[0],
        enable_prefix_caching=caching,
        kept=kept,
        specs=tuple(specs),
        groups=groups,
        pool_kind=DOCUMENT if scenario.semantics == "document" and policy.pool_kind.is_one_size else policy.pool_kind,
        stages=_stages(scenario, model, gpu, limits, groups, [layer for layer, _ in layers]),
    )


def _found(scenario: Scenario) -> Model:
    try:
        return find_model(scenario.model, scenario.quantization)
    except QuantizationError as error:
        raise ScenarioError(f"--quantization: {error}") from None


def _with_drafters(scenario: Scenario, model: Model) -> Model:
    """The model with the layers that draft for it."""
    config = scenario.speculative_config
    if config is None or config.method == "ngram":
        return replace(model, draft_layers=())
    if config.method == "mtp":
        if not model.draft_layers:
            raise ScenarioError(f"--speculative-config: {model.name} has no layers of its own to predict tokens (mtp)")
        return model
    assumed = (*model.assumed, "an EAGLE layer like the model's own")
    return replace(model, draft_layers=(_eagle_layer(model),), assumed=assumed)


def _eagle_layer(model: Model) -> Layer:
    """EAGLE's drafter: one layer of full attention with the heads and the MLP of the model's own."""
    for layer in model.layers:
        for mixer in layer.mixers:
            heads = getattr(mixer, "heads", None)
            if heads is not None:
                return replace(layer, mixers=(FullAttention(heads),))
    raise ScenarioError(f"--speculative-config: {model.name} has no attention layer for an EAGLE layer to be like")


def _check_ranks(scenario: Scenario, model: Model) -> None:
    if not model.can_split(scenario.tensor_parallel_size):
        raise ScenarioError(
            f"--tensor-parallel-size: the heads or channels of {model.name} cannot be split evenly,"
            f" got {scenario.tensor_parallel_size}"
        )
    if scenario.pipeline_parallel_size > len(model.layers):
        raise ScenarioError(
            f"--pipeline-parallel-size: {model.name} has {len(model.layers)} layers,"
            f" got {scenario.pipeline_parallel_size}"
        )


def _limits(scenario: Scenario, model: Model, gpu: Gpu | None) -> SchedulerSettings:
    """Scheduler limits; what is not stated follows from the GPU's memory, as in vLLM's server."""
    max_tokens, max_seqs = _default_limits(gpu)
    stated = scenario.max_model_len
    max_model_len = model.max_model_len if stated is None or stated == "auto" else stated
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
        reserve_full_isl=scenario.reserves_full_isl,
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


def _kept_layers(scenario: Scenario, model: Model) -> list[tuple[int, KVCacheSpec]]:
    """(layer, what it keeps on one rank), in blocks as large as asked for."""

    def kept(block_size: int) -> list[tuple[int, KVCacheSpec]]:
        return model.kv_cache_layers(
            block_size=block_size,
            tensor_parallel=scenario.tensor_parallel_size,
            kv_cache_dtype=scenario.kv_cache_dtype,
            mamba_cache_dtype=scenario.mamba_cache_dtype,
            mamba_ssm_cache_dtype=scenario.mamba_ssm_cache_dtype,
            num_speculative_tokens=scenario.num_speculative_tokens,
        )

    layers = kept(scenario.block_size or BLOCK_SIZE)
    if scenario.block_size is None and any(spec.kind == "mla" for _, spec in layers):
        return kept(LATENT_BLOCK_SIZE)
    return layers


def _policy(scenario: Scenario) -> GroupingPolicy:
    """How layers become groups: as asked for, or as the semantics have it."""
    named = scenario.grouping
    if scenario.disable_hybrid_kv_cache_manager:
        if named not in (None, "unified"):
            raise ScenarioError(
                f"--grouping: --disable-hybrid-kv-cache-manager leaves one group (unified), got {named!r}"
            )
        named = "unified"
    policy = policy_named(named or ("smallest" if scenario.semantics == "document" else "vllm"))
    if not policy.serves:
        raise ScenarioError(f"--grouping: {policy.name} is a bound that no server reaches; `kvplan waste` shows it")
    return policy


def _kept(scenario: Scenario, specs: Sequence[KVCacheSpec], caching: bool, max_model_len: int) -> KeptLayers:
    """What the layers keep. A size stated for states counts only where nothing attends."""
    block_size = specs[0].block_size if specs else BLOCK_SIZE
    if caching and specs and all(spec.kind == "mamba" for spec in specs):
        block_size = scenario.mamba_block_size or block_size
    return KeptLayers(tuple(specs), block_size, caching, max_model_len)


def _stages(
    scenario: Scenario,
    model: Model,
    gpu: Gpu | None,
    limits: SchedulerSettings,
    groups: Sequence[KVCacheGroup],
    layer_of_spec: Sequence[int],
) -> tuple[Stage, ...]:
    ends = model.stage_ends(scenario.pipeline_parallel_size)
    ends[-1] += len(model.draft_layers)
    stages = []
    for part, start, end in zip(model.stages(scenario.pipeline_parallel_size), [0, *ends], ends, strict=False):
        members = {spec for spec, layer in enumerate(layer_of_spec) if start <= layer < end}
        parts = tuple(group.among(members) for group in groups)
        held = tuple(group for group in parts if group.layers)
        stages.append(Stage(part, held, _budget_bytes(scenario, part, gpu, limits)))
    return tuple(stages)


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
            enforce_eager=scenario.enforce_eager,
        ),
    )
