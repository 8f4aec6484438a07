"""What a layer's two parts answer: the one that mixes tokens (attention or a state) and the MLP.

Every number is that of one layer on one tensor-parallel rank; `tensor_parallel` is the number of ranks.
"""

from dataclasses import dataclass
from typing import Protocol

from kvcache.specs import KVCacheSpec
from models_configs.quantization import StoredWeights, WeightFormat
from models_configs.reach import Reach

__all__ = ["AttentionPart", "KVCacheOptions", "MLPPart", "MixingCost", "Routing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheOptions:
    """How a server keeps its KV cache; dtypes are resolved (no "auto")."""

    block_size: int
    """Tokens in one block."""
    tensor_parallel: int
    kv_dtype: str
    """Of keys and values."""
    conv_dtype: str
    """Of a Mamba layer's convolution state."""
    ssm_dtype: str | None
    """Of a layer's recurrent state; None: the layer's own choice, or else the convolution's."""
    mamba_cache_mode: str
    """ "none": one state per request; "align": states kept at block boundaries."""
    num_speculative_tokens: int = 0
    """Draft tokens of a step: a convolution keeps a column for each, a state a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingCost:
    """What one layer does and moves to mix the tokens of one request, its weights apart."""

    reach: Reach
    flops_per_pair: int = 0
    """For a token and one that it attends to."""
    bytes_per_token: int = 0
    """Kept for one token: written once, read by all that attend to it."""
    flops_per_token: int = 0
    """For a token, whatever its context."""
    bytes_per_request: int = 0
    """Moved once for all of a request's tokens in a step."""

    def flops(self, num_new: int, num_computed: int) -> int:
        """FLOPs of `num_new` tokens that follow `num_computed`."""
        return self.flops_per_pair * self.reach.num_pairs(num_new, num_computed) + self.flops_per_token * num_new

    def num_bytes(self, num_new: int, num_computed: int) -> int:
        """Bytes moved for `num_new` tokens that follow `num_computed`.

        What is in reach of the first is read, what is new is written; that later ones read the new
        tokens too is served by on-chip memory.
        """
        num_tokens = self.reach.seen_before(num_computed) + num_new
        return self.bytes_per_token * num_tokens + self.bytes_per_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The routed experts of one layer; equal ones can be counted together."""

    num_experts: int
    top_k: int
    """Experts that each token passes."""
    expert_parameters: int
    expert_bytes: int
    """Weights of one expert."""
    weight_format: WeightFormat | None = None
    """Of its matrices; None for unquantized."""


class AttentionPart(Protocol):
    """The part of a layer through which a token learns from those before it."""

    @property
    def reach(self) -> Reach:
        """How far back a token attends."""

    def can_split(self, tensor_parallel: int) -> bool:
        """Whether its heads or channels can be split evenly over so many ranks."""

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank."""

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of those weights as published, where unquantized ones take `element_bytes` each."""

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The same by format."""

    def spec(self, options: KVCacheOptions) -> KVCacheSpec | None:
        """What the layer keeps; None if nothing of its own."""

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """What mixing tokens does and moves."""

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Numbers alive at once for one token, at most."""


class MLPPart(Protocol):
    """The part of a layer that works on each token alone."""

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank, all experts included."""

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of those weights as published, where unquantized ones take `element_bytes` each."""

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """Those that every token passes, by format: all but the routed experts."""

    def kernel_padding_bytes(self, tensor_parallel: int = 1) -> int:
        """What a server's kernels add to them when it loads them."""

    def routing(self, element_bytes: int, tensor_parallel: int = 1) -> Routing | None:
        """The routed experts; None for a dense MLP."""

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Numbers alive at once for one token, at most."""
