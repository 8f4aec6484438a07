"""Errors that are a person's to mend: each message is one line that says where, what and the nearest right one."""

from kvcache.errors import KVCacheError
from models_configs import ConfigFieldError, UnknownModelError
from simulator.hardware import UnknownGpuError
from simulator.memory import WeightsDoNotFitError
from simulator.scenario import ScenarioError
from workloads import TraceError

__all__ = ["MISTAKES"]

MISTAKES: tuple[type[Exception], ...] = (
    ConfigFieldError,
    KVCacheError,
    ScenarioError,
    TraceError,
    UnknownGpuError,
    UnknownModelError,
    WeightsDoNotFitError,
)
