"""Back a run with real memory: the pool as tensors, a witness that uses it, and what it measured.

Needs PyTorch, the `tensors` extra; without `--back-with` none of it is loaded. Read `back` first.
"""

from typing import TYPE_CHECKING, Any, Protocol

from kvcache.layout import KVCacheLayout
from kvcache.placement import place
from kvcache.scaling import thinned
from simulator.deployment import Deployment
from simulator.replica import StepObserver
from simulator.request import Request
from simulator.scenario import ScenarioError
from simulator.scheduler import Scheduler
from simulator.token_content import TokenContent
from workloads import Trace, TraceRequest

if TYPE_CHECKING:
    from simulator.witness import Witness

__all__ = ["Backing", "back"]

GATHERED_BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Tokens of the pages that are gathered to measure how fast a device does that."""


class Backing(Protocol):
    """What may stand behind the block ids of a run."""

    def expect(self, request: Request, row: TraceRequest, serial: int) -> None:
        """A request of the trace may come."""

    def watch(self, observer: StepObserver) -> StepObserver:
        """Who watches the run in `observer`'s place, and tells it everything."""

    def measured(self) -> dict[str, Any] | None:
        """The measured memory of the run that is over, in plain JSON values."""


def back(deployment: Deployment, scheduler: Scheduler, trace: Trace) -> Backing:
    """What the scenario asks for: tensors, or nothing.

    Raises ScenarioError without PyTorch, KVCacheError without the device or the memory.
    """
    scenario = deployment.scenario
    if scenario.back_with is not None:
        return _Tensors(deployment, scheduler, trace, scenario.back_with)
    if scenario.pool_fraction != 1.0:
        raise ScenarioError("--pool-fraction: goes with --back-with only")
    return _Nothing()


class _Nothing:
    """Block ids are numbers."""

    def expect(self, request: Request, row: TraceRequest, serial: int) -> None:
        """Nobody asks."""

    def watch(self, observer: StepObserver) -> StepObserver:
        """The observer itself."""
        return observer

    def measured(self) -> None:
        """Nothing was."""
        return


class _Tensors:
    """The pool on a device, and a witness of the run."""

    def __init__(self, deployment: Deployment, scheduler: Scheduler, trace: Trace, device: str) -> None:
        self._pages, self._make_witness = _with_torch(device)
        self._device = device
        self._scheduler = scheduler
        self._id_tokens = trace.prefix_block_tokens or 1
        self._predicted_bytes = deployment.layout.pool_bytes
        layout, self._divisor = thinned(deployment.layout, deployment.scenario.pool_fraction)
        self._pages.release_unused(device)
        self._bandwidth = self._measure_bandwidth(layout) if device == "cuda" else None
        self._buffers = self._pages.allocation_bytes(sorted(set(place(layout).buffer_bytes)), device)
        self._before = self._pages.memory_now(device)
        self._pool = self._pages.KVPages(layout, device)
        self._allocated = self._pages.memory_now(device)
        self._witness: Witness | None = None

    def expect(self, request: Request, row: TraceRequest, serial: int) -> None:
        """A request of the trace may come."""
        assert self._witness is not None
        self._witness.expect(request, TokenContent(row.prefix_ids, self._id_tokens, serial))

    def watch(self, observer: StepObserver) -> StepObserver:
        """A witness that tells the observer everything."""
        self._witness = self._make_witness(self._pool, self._scheduler, observer)
        return self._witness

    def measured(self) -> dict[str, Any]:
        """Predicted, allocated and touched bytes, what the device says, and how fast it reads pages."""
        assert self._witness is not None
        pool, placement = self._witness.pool, self._pool.placement
        return {
            "device": self._device,
            "pool_fraction": 1 / self._divisor,
            "predicted_bytes": self._predicted_bytes,
            "backed_bytes": placement.pool_bytes,
            "storage_bytes": self._pool.storage_bytes,
            "num_buffers": len(placement.buffer_bytes),
            "buffers": self._buffers,
            "before": self._before,
            "allocated": self._allocated,
            "after": self._pages.memory_now(self._device),
            "touched_blocks": pool.num_touched,
            "touched_bytes": pool.num_touched * (placement.pool_bytes // placement.num_blocks),
            "layers_per_mark": pool.turns.num,
            "marks_written": pool.num_written,
            "marks_read": pool.num_read,
            "bandwidth": self._bandwidth,
        }

    def _measure_bandwidth(self, layout: KVCacheLayout) -> dict[str, Any]:
        token_bytes = next((group.spec.token_bytes for group in layout.groups if hasattr(group.spec, "token_bytes")), 0)
        gathered = {
            str(size): self._pages.gather_bytes_per_s(self._device, size * token_bytes)
            for size in GATHERED_BLOCK_SIZES
            if token_bytes
        }
        copied = self._pages.copy_bytes_per_s(self._device)
        self._pages.release_unused(self._device)
        return {"copy_bytes_per_s": copied, "gather_bytes_per_s": gathered}


def _with_torch(device: str) -> tuple[Any, Any]:
    """What needs PyTorch: the module of pages, and the witness."""
    try:
        from kvcache import pages
        from simulator.witness import Witness
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ScenarioError(f"--back-with: {device} needs PyTorch: pip install 'kvplan[tensors]'") from None
    pages.check_device(device)
    return pages, Witness
