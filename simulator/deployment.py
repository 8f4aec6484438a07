"""From a scenario to a replica that can serve: its pool, its settings, its step times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings, KVCacheManager
from kvcache.policies import GroupingPolicy
from models_configs import Model
from simulator.capacity import describe_groups
from simulator.hardware import Gpu
from simulator.latency import StepTimes
from simulator.loading import KVSource, LoadingScheduler
from simulator.scenario import Scenario, ScenarioError
from simulator.scheduler import Scheduler, SchedulerSettings
from simulator.server import plan_server
from simulator.step_times import step_times_of

__all__ = ["Deployment", "deploy", "deploy_all"]


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
    other_step_times: StepTimes | None = None
    """Instead of those that the scenario asks for."""

    def new_scheduler(self, manager: KVCacheManager | None = None, source: KVSource | None = None) -> Scheduler:
        """A scheduler with an empty pool. Raises KVCacheError for settings that these layers do not allow.

        `manager`: another one than a plain one, for the same layout and settings, still unused. `source`: where
        keys and values come from that are neither cached nor computed.
        """
        manager = manager or KVCacheManager(self.layout, self.cache_settings)
        if source is not None:
            return LoadingScheduler(manager, self.scheduler_settings, self.model.reaches, source)
        return Scheduler(manager, self.scheduler_settings, self.model.reaches)

    @cached_property
    def step_times(self) -> StepTimes:
        """How long steps take on this server."""
        return self.other_step_times or step_times_of(self.scenario, self.model, self.gpu)

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
            "groups": describe_groups(layout),
            "step_times": None if self.gpu is None and self.scenario.step_time_s is None else self.step_times.source,
        }

    def resolved_scenario(self) -> dict[str, object]:
        """What was asked for, with every default that depends on others filled in; plain JSON values.

        `Scenario(**resolved)` is the same server again, and from the same folder the same run.
        """
        limits, retention = self.scheduler_settings, self.cache_settings.prefix_cache_retention_interval
        # The name of a model that was read from a file leads to no model: its path does.
        is_file = self.model.source == self.model.hf_id
        return {
            **self.scenario.model_dump(mode="json"),
            "model": self.scenario.model if is_file else self.model.name,
            "gpu": None if self.gpu is None else self.gpu.name,
            "dtype": self.model.dtype,
            "block_size": self.cache_settings.block_size,
            "enable_prefix_caching": self.cache_settings.enable_prefix_caching,
            "max_model_len": limits.max_model_len,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "prefix_cache_retention_interval": "dense" if retention is None else retention,
            "num_warmups": self.scenario.num_left_out,
            "scheduler_reserve_full_isl": limits.reserve_full_isl,
        }


def deploy(scenario: Scenario, policy: GroupingPolicy | None = None) -> Deployment:
    """The server that a scenario asks for, ready to serve; `policy` groups its layers, if one is given.

    Raises ValueError with one line for a person: UnknownModelError, UnknownGpuError, WeightsDoNotFitError,
    KVCacheError (the pool is too small, the layers cannot be grouped) or ScenarioError.
    """
    if scenario.pipeline_parallel_size > 1 or scenario.speculative_config is not None:
        flag = "--pipeline-parallel-size" if scenario.pipeline_parallel_size > 1 else "--speculative-config"
        raise ScenarioError(f"{flag}: is known to `kvplan capacity`, but steps with it are not simulated yet")
    server = plan_server(scenario, policy)
    layout = server.layout()
    keeps_states = any(getattr(group.spec, "cache_mode", None) == "align" for group in layout.groups)
    cache_settings = CacheSettings(
        block_size=server.block_size,
        enable_prefix_caching=server.enable_prefix_caching,
        prefix_cache_retention_interval=scenario.retention_interval,
        watermark=scenario.watermark,
        caches_every_block=scenario.semantics == "document",
    )
    limits = replace(
        server.limits, max_model_len=layout.max_model_len, state_block=server.block_size if keeps_states else None
    )
    (stage,) = server.stages
    return Deployment(scenario, server.model, server.gpu, stage.budget_bytes, layout, cache_settings, limits)


def deploy_all(scenarios: Sequence[Scenario]) -> list[Deployment]:
    """A server for each; equal scenarios share one description. Raises as `deploy` does."""
    alike = {scenario: deploy(scenario) for scenario in dict.fromkeys(scenarios)}
    return [alike[scenario] for scenario in scenarios]
