"""Mamba-2: a selective state space over heads, whose B and C are shared by groups of heads."""

from dataclasses import dataclass

from models_configs.mamba import SCAN_FLOPS_PER_STATE_ELEMENT
from models_configs.quantization import Weights
from models_configs.states import StateMixer, split_evenly

__all__ = ["Mamba2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(StateMixer):
    """One Mamba-2 mixer."""

    num_heads: int
    head_size: int
    num_groups: int
    """Groups of heads that share B and C; with fewer groups than ranks each rank holds copies."""
    d_state: int
    d_conv: int
    has_conv_bias: bool = True
    has_proj_bias: bool = False
    has_norm: bool = True
    """A learned norm over the output before its projection."""

    @property
    def shard_units(self) -> int:
        """Heads."""
        return self.num_heads

    def _heads(self, tensor_parallel: int) -> int:
        return split_evenly(self.num_heads, tensor_parallel, "Mamba heads")

    def _groups(self, tensor_parallel: int) -> int:
        """Those on one rank; where they cannot be split evenly, one (vLLM 0.32, `extra_groups_for_head_shards`)."""
        return self.num_groups // tensor_parallel if self.num_groups % tensor_parallel == 0 else 1

    def _conv_channels(self, tensor_parallel: int) -> int:
        return self._heads(tensor_parallel) * self.head_size + 2 * self._groups(tensor_parallel) * self.d_state

    def weights(self, tensor_parallel: int) -> Weights:
        """Projections in (to z, x, B, C and dt) and out, convolution, dt bias, A and D of each head, norm."""
        heads, conv_channels = self._heads(tensor_parallel), self._conv_channels(tensor_parallel)
        inner_size = heads * self.head_size
        width_in = inner_size + conv_channels + heads
        others = conv_channels * (self.d_conv + self.has_conv_bias) + 3 * heads + inner_size * self.has_norm
        if self.has_proj_bias:
            others += width_in + self.hidden_size
        return Weights((width_in + inner_size) * self.hidden_size, others)

    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs (x, B, C), and a matrix for each head."""
        conv = (self.d_conv - 1 + num_speculative_tokens, self._conv_channels(tensor_parallel))
        return conv, (self._heads(tensor_parallel), self.head_size, self.d_state)

    def flops_per_token(self, tensor_parallel: int) -> int:
        """The scan and the convolution."""
        scan = self._heads(tensor_parallel) * self.head_size * self.d_state * SCAN_FLOPS_PER_STATE_ELEMENT
        return scan + 2 * self._conv_channels(tensor_parallel) * self.d_conv

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """z, x, B, C and dt, the convolved x, B, C, and the output."""
        heads, conv_channels = self._heads(tensor_parallel), self._conv_channels(tensor_parallel)
        return 2 * heads * self.head_size + 2 * conv_channels + heads
