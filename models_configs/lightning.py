"""Lightning attention: linear attention with a fixed decay for each head (MiniMax-Text-01, M1)."""

from dataclasses import dataclass

from models_configs.parts import KVCacheOptions
from models_configs.quantization import Weights
from models_configs.states import StateMixer, split_evenly

__all__ = ["LightningAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention(StateMixer):
    """One layer of lightning attention."""

    num_heads: int
    head_size: int

    @property
    def shard_units(self) -> int:
        """Heads."""
        return self.num_heads

    def _width(self, tensor_parallel: int) -> int:
        return split_evenly(self.num_heads, tensor_parallel, "attention heads") * self.head_size

    def weights(self, tensor_parallel: int) -> Weights:
        """Projections to q, k, v and the output gate, out; a norm over the output."""
        width = self._width(tensor_parallel)
        return Weights(5 * width * self.hidden_size, width)

    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """A matrix for each head; there is no convolution."""
        return ((self._width(tensor_parallel) // self.head_size, self.head_size, self.head_size),)

    def dtypes(self, options: KVCacheOptions) -> tuple[str, ...]:
        """One matrix, one dtype."""
        return (self.recurrent_dtype(options),)

    def flops_per_token(self, tensor_parallel: int) -> int:
        """Decay 1, outer product of key and value 2, reading with the query 2, for each element of the state."""
        return 5 * self._width(tensor_parallel) * self.head_size

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """q, k, v, the gate and the output."""
        return 5 * self._width(tensor_parallel)
