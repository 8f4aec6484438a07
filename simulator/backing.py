"""Back a run with real memory: the pool as tensors, a witness that uses it, and what it measured.

Needs PyTorch, the `tensors` extra. Read `Backing.watch` first: from there on the run does not know that its
blocks are real.
"""

from typing import TYPE_CHECKING, Any

from simulator.deployment import Deployment
from simulator.scenario import ScenarioError
from simulator.server import plan_server

if TYPE_CHECKING:
    from kvcache.pages import KVPages
    from simulator.replica import StepObserver
    from simulator.request import Request
    from simulator.scheduler import Scheduler
    from simulator.witness import Witness
    from workloads import Trace, TraceRequest

__all__ = ["Backing"]

GATHERED_BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Tokens: the pages that are read to measure how fast a device gathers."""


class Backing:
    """The real memory behind one run's pool, and what was measured of it."""

    def __init__(self, deployment: Deployment, device: str) -> None:
        """Allocate the pool on `device`, "cpu" or "cuda".

        Raises ScenarioError without PyTorch, KVCacheError without the device or the memory.
        """
        try:
            from kvcache import pages
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ScenarioError(
                f"--back-with: {device} needs PyTorch: pip install 'kvplan[tensors]'"
            ) from None
        pages.check_device(device)
        self._device = device
        self._fraction = deployment.scenario.pool_fraction
        self._predicted_bytes = deployment.layout.pool_bytes
        specs = plan_server(deployment.scenario).specs
        self._before = pages.memory_now(device)
        self.pages: KVPages = pages.KVPages(deployment.layout, device, specs=specs)
        self._after = pages.memory_now(device)
        self._memory_now = pages.memory_now
        self._witness: Witness | None = None

    def watch(self, scheduler: "Scheduler", observer: "StepObserver", trace: "Trace") -> "Witness":
        """A witness in `observer`'s place that tells it everything."""
        from simulator.witness import Witness

        self._id_tokens = trace.prefix_block_tokens or 1
        self._witness = Witness(self.pages, scheduler, observer)
        return self._witness

    def expect(self, request: "Request", row: "TraceRequest", serial: int) -> None:
        """A request of the trace may come."""
        from simulator.token_content import TokenContent

        assert self._witness is not None
        self._witness.expect(request, TokenContent(row.prefix_ids, self._id_tokens, serial))

    def measured(self) -> dict[str, Any]:
        """The measured memory of the run that is over, in plain JSON values."""
        assert self._witness is not None
        pool, placement = self._witness.pool, self.pages.placement
        block_bytes = placement.pool_bytes // placement.num_blocks
        return {
            "device": self._device,
            "pool_fraction": self._fraction,
            "predicted_bytes": self._predicted_bytes,
            "storage_bytes": self.pages.storage_bytes,
            "num_buffers": len(placement.buffer_bytes),
            "buffer_bytes": list(placement.buffer_bytes),
            "before": self._before,
            "allocated": self._after,
            "after": self._memory_now(self._device),
            "touched_blocks": pool.num_touched,
            "touched_bytes": pool.num_touched * block_bytes,
            "marks_written": pool.num_written,
            "marks_read": pool.num_read,
        }
