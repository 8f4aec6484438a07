"""Gated delta nets: a matrix for each value head, corrected by the delta rule and decayed by a gate.

`GatedDeltaNet` has one gate per head (Qwen3-Next, Qwen3.5), `KimiDelta` one per element of the key (Kimi-Linear).
"""

from dataclasses import dataclass

from models_configs.quantization import Weights
from models_configs.states import StateMixer, split_evenly

__all__ = ["GatedDeltaNet", "KimiDelta"]

DELTA_FLOPS_PER_STATE_ELEMENT = 7
"""Decay 1, prediction k S 2, correction 2, reading q S 2 (arXiv 2412.06464, equation 10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet(StateMixer):
    """One gated delta net."""

    num_key_heads: int
    key_size: int
    num_value_heads: int
    value_size: int
    d_conv: int

    @property
    def shard_units(self) -> int:
        """Key heads: each rank has whole ones."""
        return self.num_key_heads

    def _value_heads(self, tensor_parallel: int) -> int:
        return split_evenly(self.num_value_heads, tensor_parallel, "value heads")

    def _conv_channels(self, tensor_parallel: int) -> int:
        key_heads = split_evenly(self.num_key_heads, tensor_parallel, "key heads")
        return 2 * key_heads * self.key_size + self._value_heads(tensor_parallel) * self.value_size

    def weights(self, tensor_parallel: int) -> Weights:
        """Projections to q, k, v and the output gate z, out; those to a and b, convolution, A, dt bias, norm.

        Those to a and b have one output per head, too few for a block: quantized checkpoints keep them as they are.
        """
        heads, conv_channels = self._value_heads(tensor_parallel), self._conv_channels(tensor_parallel)
        value_width = heads * self.value_size
        others = 2 * heads * self.hidden_size + conv_channels * self.d_conv + 2 * heads + self.value_size
        return Weights((conv_channels + 2 * value_width) * self.hidden_size, others)

    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The convolution's last inputs (q, k, v), and a matrix for each value head."""
        conv = (self.d_conv - 1 + num_speculative_tokens, self._conv_channels(tensor_parallel))
        return conv, (self._value_heads(tensor_parallel), self.value_size, self.key_size)

    def flops_per_token(self, tensor_parallel: int) -> int:
        """The delta rule and the convolution."""
        elements = self._value_heads(tensor_parallel) * self.value_size * self.key_size
        return elements * DELTA_FLOPS_PER_STATE_ELEMENT + 2 * self._conv_channels(tensor_parallel) * self.d_conv

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """q, k, v before and after the convolution, z, the output."""
        heads = self._value_heads(tensor_parallel)
        return 2 * self._conv_channels(tensor_parallel) + 2 * heads * self.value_size


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta(StateMixer):
    """One Kimi delta attention."""

    num_heads: int
    head_size: int
    d_conv: int
    has_full_rank_gate: bool = False
    """The output gate is one projection (Kimi-K3), not two of low rank."""

    @property
    def shard_units(self) -> int:
        """Heads."""
        return self.num_heads

    def _width(self, tensor_parallel: int) -> int:
        return split_evenly(self.num_heads, tensor_parallel, "delta heads") * self.head_size

    def weights(self, tensor_parallel: int) -> Weights:
        """Projections to q, k, v, b, decay (of low rank), output gate, out; convolutions, A, dt bias, norm."""
        heads, width = self.num_heads // tensor_parallel, self._width(tensor_parallel)
        low_rank = self.head_size * (self.hidden_size + width)
        gate = self.hidden_size * width if self.has_full_rank_gate else low_rank
        matrices = (4 * width + heads) * self.hidden_size + low_rank + gate
        return Weights(matrices, 3 * width * self.d_conv + heads + width + self.head_size)

    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """The convolutions' last inputs (q, k, v), and a matrix for each head."""
        width = self._width(tensor_parallel)
        conv = (self.d_conv - 1 + num_speculative_tokens, 3 * width)
        return conv, (width // self.head_size, self.head_size, self.head_size)

    def flops_per_token(self, tensor_parallel: int) -> int:
        """The delta rule and the convolutions."""
        width = self._width(tensor_parallel)
        return width * self.head_size * DELTA_FLOPS_PER_STATE_ELEMENT + 6 * width * self.d_conv

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """q, k, v before and after the convolutions, decay, gate, output."""
        return 9 * self._width(tensor_parallel)
