"""Step times from tables of kernels: which kernels a step runs, and how long each takes."""

from collections.abc import Callable
from functools import cache

from simulator.batch import Batch
from simulator.efficiencies import Efficiencies
from simulator.kernel_tables import Kernels
from simulator.latency import Work
from simulator.roofline import Roofline

__all__ = ["KernelStepTimes"]


class KernelStepTimes:
    """Step times from measured kernels."""

    def __init__(self, kernels: Kernels, peaks: Roofline, efficiencies: Efficiencies, source: str) -> None:
        """`peaks` is the roofline of a server that reaches all of its hardware's peaks: no kernel is faster.

        Of the efficiencies the host's costs alone count.
        """
        self._kernels = kernels
        self._peaks = peaks
        self._step_s, self._request_s = efficiencies.step_s, efficiencies.request_s
        self._decodes_s: Callable[[int], float] = cache(self._decodes_without_attention_s)
        self.source = source
        """Where the times are from, in words."""

    def durations_s(self, batch: Batch) -> list[float]:
        """How long each step of the batch takes: [batch.num_steps], seconds.

        The first and the last are looked up; in between contexts grow linearly, and so does the time.
        """
        num_decodes, num_steps = batch.num_decodes, batch.num_steps
        fixed_s = self._with_prompts_s(batch) if batch.prefill_chunks else self._decodes_s(num_decodes)
        if not num_decodes:
            return [fixed_s] * num_steps
        first_s = fixed_s + self._decode_attention_s(batch, 0)
        if num_steps == 1:
            return [first_s]
        last_s = fixed_s + self._decode_attention_s(batch, num_steps - 1)
        growth_s = (last_s - first_s) / (num_steps - 1)
        return [first_s + growth_s * step for step in range(num_steps)]

    def least_s(self, work: Work) -> float:
        """Seconds that no schedule of this work can do without, at the hardware's peaks."""
        return self._peaks.least_s(work)

    def _decodes_without_attention_s(self, num_decodes: int) -> float:
        fixed_s = self._step_s + num_decodes * self._request_s
        return fixed_s + self._kernels.decode.at(num_decodes) + self._kernels.logits.at(num_decodes)

    def _with_prompts_s(self, batch: Batch) -> float:
        """All but the attention of decodes."""
        kernels, chunks = self._kernels, batch.prefill_chunks
        num_requests = batch.num_decodes + len(chunks)
        seconds = self._step_s + num_requests * self._request_s
        seconds += kernels.prefill.at(batch.num_tokens) + kernels.logits.at(num_requests)
        attention = kernels.prefill_attention
        for num_new, num_computed in chunks:
            seconds += attention.along(num_new).at(num_computed)
        if len(chunks) > 1:  # one kernel computes them all: what it takes whatever it computes counts once
            seconds -= (len(chunks) - 1) * attention.along(1).at(0)
        return seconds

    def _decode_attention_s(self, batch: Batch, step: int) -> float:
        """Each decode attends to what it has seen and to itself."""
        num_decodes = batch.num_decodes
        seconds = 0.0
        for reach, surface in self._kernels.decode_attention:
            if reach is None:
                before = batch.decode_context_tokens + step * num_decodes
            else:
                before = batch.decode_window_tokens[reach] + step * batch.decode_window_growth[reach]
            seconds += surface.along(num_decodes).at(before / num_decodes + 1)
        return seconds
