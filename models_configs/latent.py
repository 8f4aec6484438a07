"""Multi-head latent attention: all heads share one latent vector per token, and only that is kept (DeepSeek, Kimi)."""

from dataclasses import dataclass

from kvcache.specs import MLASpec
from models_configs.parts import KVCacheOptions, MixingCost
from models_configs.quantization import StoredWeights, WeightFormat, Weights
from models_configs.reach import Everything, Reach
from models_configs.states import split_evenly

__all__ = ["LatentAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """One layer; names as in DeepSeek-V2's paper and configuration."""

    hidden_size: int
    num_heads: int
    kv_rank: int
    """Elements of the latent vector that keys and values are projected from (`kv_lora_rank`)."""
    rope_size: int
    """Elements beside it that carry the position, shared by all heads (`qk_rope_head_dim`)."""
    nope_size: int
    """Elements of a key that do not (`qk_nope_head_dim`)."""
    value_size: int
    """Elements of a value (`v_head_dim`)."""
    query_rank: int | None = None
    """Of the latent vector that queries are projected from; None: they are projected from the hidden state."""
    gate_size: int = 0
    """Outputs of a projection that gates what attention gives (Kimi-K3)."""
    num_other_matrix_elements: int = 0
    """Weights of the matrices of what chooses tokens (DeepSeek-V3.2's indexer), on every rank."""
    num_other_parameters: int = 0
    """Its weights that no checkpoint quantizes."""
    weight_format: WeightFormat | None = None
    """Of the projections; None for unquantized."""

    @property
    def reach(self) -> Reach:
        """All tokens before it."""
        return Everything()

    def can_split(self, tensor_parallel: int) -> bool:
        """Whether the query heads can be split evenly; the latent vector is on every rank."""
        return self.num_heads % tensor_parallel == 0

    def _heads(self, tensor_parallel: int) -> int:
        return split_evenly(self.num_heads, tensor_parallel, "attention heads")

    def _weights(self, tensor_parallel: int) -> Weights:
        heads, key_size = self._heads(tensor_parallel), self.nope_size + self.rope_size
        if self.query_rank is None:
            query, norms = self.hidden_size * heads * key_size, self.kv_rank
        else:
            query = self.query_rank * (self.hidden_size + heads * key_size)
            norms = self.query_rank + self.kv_rank
        down = self.hidden_size * (self.kv_rank + self.rope_size)
        up = self.kv_rank * heads * (self.nope_size + self.value_size)
        output = (heads * self.value_size + self.gate_size // tensor_parallel) * self.hidden_size
        matrices = query + down + up + output + self.num_other_matrix_elements
        return Weights(matrices, norms + self.num_other_parameters)

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Projections down to the latents and up again, the gate, out; norms of the latents; what chooses tokens."""
        return self._weights(tensor_parallel).total

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of those weights as published."""
        return self._weights(tensor_parallel).num_bytes(element_bytes, self.weight_format)

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The same by format."""
        return self._weights(tensor_parallel).stored(element_bytes, self.weight_format)

    def spec(self, options: KVCacheOptions) -> MLASpec:
        """One latent vector and one rotary part per token, whatever the number of ranks."""
        return MLASpec(block_size=options.block_size, head_size=self.kv_rank + self.rope_size, dtype=options.kv_dtype)

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """Scores and weighted sums of prompts, where keys and values are projected up.

        Decodes attend in the latent space instead, with more arithmetic per pair, but what limits them is reading.
        """
        heads = self._heads(options.tensor_parallel)
        return MixingCost(
            reach=self.reach,
            flops_per_pair=2 * heads * (self.nope_size + self.rope_size + self.value_size),
            bytes_per_token=self.spec(options).token_bytes,
        )

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Queries, keys and values of all heads, the output before its projection."""
        heads = self._heads(tensor_parallel)
        return heads * 2 * (self.nope_size + self.rope_size + self.value_size)
