"""What all layers have in common that keep one state of constant size instead of tokens."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvcache.specs import MambaSpec
from models_configs.parts import KVCacheOptions, MixingCost
from models_configs.quantization import StoredWeights, WeightFormat, Weights
from models_configs.reach import Everything, Reach

__all__ = ["StateMixer", "split_evenly"]


def split_evenly(count: int, tensor_parallel: int, what: str) -> int:
    """The part of one rank. Raises ValueError where there is no even one."""
    if count % tensor_parallel:
        raise ValueError(f"{count} {what} cannot be split evenly over {tensor_parallel} ranks")
    return count // tensor_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMixer(ABC):
    """A recurrence: its state stands for all tokens so far, and a convolution before it for the last few.

    A subclass says which shapes the state has and what weights and arithmetic go with it.
    """

    hidden_size: int
    ssm_dtype: str | None = None
    """Of the recurrent state, where the model declares one."""
    weight_format: WeightFormat | None = None
    """Of the projections; None for unquantized."""

    @property
    @abstractmethod
    def shard_units(self) -> int:
        """Heads or channels: the number of ranks must divide it."""

    def can_split(self, tensor_parallel: int) -> bool:
        """Whether its heads or channels can be split evenly over so many ranks."""
        return self.shard_units % tensor_parallel == 0

    @abstractmethod
    def weights(self, tensor_parallel: int) -> Weights:
        """Weights on one rank."""

    @abstractmethod
    def shapes(self, tensor_parallel: int, num_speculative_tokens: int) -> tuple[tuple[int, ...], ...]:
        """Shape of each part of the state on one rank: the convolution's inputs first, then the recurrent state."""

    @abstractmethod
    def flops_per_token(self, tensor_parallel: int) -> int:
        """FLOPs of the recurrence for one token, projections apart."""

    def dtypes(self, options: KVCacheOptions) -> tuple[str, ...]:
        """Of each part of the state: convolution and recurrence, unless a type has one of them only."""
        return options.conv_dtype, self.recurrent_dtype(options)

    def recurrent_dtype(self, options: KVCacheOptions) -> str:
        """As the server says, or as the model declares it, or that of the convolution."""
        return options.ssm_dtype or self.ssm_dtype or options.conv_dtype

    @property
    def reach(self) -> Reach:
        """A state stands for everything before it: a token pays nothing for the length of its context."""
        return Everything()

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank."""
        return self.weights(tensor_parallel).total

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of those weights as published."""
        return self.weights(tensor_parallel).num_bytes(element_bytes, self.weight_format)

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The same by format."""
        return self.weights(tensor_parallel).stored(element_bytes, self.weight_format)

    def spec(self, options: KVCacheOptions) -> MambaSpec:
        """The state, before any padding or alignment of blocks."""
        return MambaSpec(
            block_size=options.block_size,
            shapes=self.shapes(options.tensor_parallel, options.num_speculative_tokens),
            dtypes=self.dtypes(options),
            cache_mode=options.mamba_cache_mode,
            num_speculative_blocks=options.num_speculative_tokens,
        )

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """The recurrence over each token; the state read once and written once for all tokens of a request."""
        return MixingCost(
            reach=self.reach,
            flops_per_token=self.flops_per_token(options.tensor_parallel),
            bytes_per_request=2 * self.spec(options).state_bytes,
        )
