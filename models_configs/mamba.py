"""Mamba-1: a selective state space over channels."""

from dataclasses import dataclass

from models_configs.quantization import Weights
from models_configs.states import StateMixer, split_evenly

__all__ = ["SCAN_FLOPS_PER_STATE_ELEMENT", "Mamba1"]

SCAN_FLOPS_PER_STATE_ELEMENT = 8
"""exp(delta A) 2, delta B x 2, state update 2, C h 2: the recurrence of Mamba (arXiv 2312.00752, algorithm 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1(StateMixer):
    """One Mamba-1 mixer; field names without their Hugging Face prefix `mamba_`."""

    inner_size: int
    """Channels: `expand` times the hidden size."""
    d_state: int
    """State elements per channel."""
    d_conv: int
    """Taps of the convolution, the current token included."""
    dt_rank: int
    has_conv_bias: bool = True
    has_proj_bias: bool = False
    has_norms: bool = False
    """Learned norms over dt, B and C (Jamba)."""

    @property
    def shard_units(self) -> int:
        """Channels."""
        return self.inner_size

    def _channels(self, tensor_parallel: int) -> int:
        return split_evenly(self.inner_size, tensor_parallel, "Mamba channels")

    def weights(self, tensor_parallel: int) -> Weights:
        """Projections in (to x and z) and out, convolution, dt/B/C projection, dt projection, A, D, norms."""
        channels = self._channels(tensor_parallel)
        selection_size = self.dt_rank + 2 * self.d_state
        matrices = channels * (3 * self.hidden_size + selection_size + self.dt_rank)  # in to x and z, and out
        others = channels * (
            (self.d_conv + self.has_conv_bias)
            + 1  # the dt projection always has a bias
            + (self.d_state + 1)  # A and D
        )
        if self.has_proj_bias:
            others += 2 * channels + self.hidden_size
        if self.has_norms:
            others += selection_size
        return Weights(matrices, others)

    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs and the recurrent state."""
        channels = self._channels(tensor_parallel)
        return (self.d_conv - 1 + num_speculative_tokens, channels), (channels, self.d_state)

    def flops_per_token(self, tensor_parallel: int) -> int:
        """The scan and the convolution."""
        return self._channels(tensor_parallel) * (SCAN_FLOPS_PER_STATE_ELEMENT * self.d_state + 2 * self.d_conv)

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """The two halves x and z, the convolved x, dt and the output, besides the small B and C."""
        return 5 * self._channels(tensor_parallel) + self.dt_rank + 2 * self.d_state
