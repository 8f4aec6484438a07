"""Attention with a key and a value per KV head and token: full, sliding window, chunked."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvcache.specs import AttentionSpec, ChunkedLocalSpec, FullAttentionSpec, SlidingWindowSpec
from models_configs.parts import KVCacheOptions, MixingCost
from models_configs.reach import Chunk, Everything, Reach, Window

__all__ = ["ChunkedAttention", "FullAttention", "Heads", "SlidingWindowAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Query heads that share KV heads (grouped-query attention), and their weights."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    """Elements of one query, key or value."""
    has_bias: bool = False
    """On all four projections."""
    has_qk_norm: bool = False
    """A learned norm over each query and each key."""
    has_sinks: bool = False
    """A learned logit per query head that takes part in each softmax (gpt-oss): a weight, not KV."""

    def on_rank(self, tensor_parallel: int) -> tuple[int, int]:
        """Query heads and KV heads on one rank.

        With fewer KV heads than ranks each rank holds a copy of one, as vLLM has it. Raises
        ValueError where the query heads cannot be split evenly.
        """
        if self.num_heads % tensor_parallel:
            raise ValueError(f"{self.num_heads} attention heads cannot be split evenly over {tensor_parallel} ranks")
        return self.num_heads // tensor_parallel, max(1, self.num_kv_heads // tensor_parallel)

    def num_parameters(self, tensor_parallel: int) -> int:
        """The four projections (q, k, v, o), their biases, the norms of queries and keys, the sinks."""
        num_heads, num_kv_heads = self.on_rank(tensor_parallel)
        query_size, kv_size = num_heads * self.head_size, 2 * num_kv_heads * self.head_size
        num_parameters = (2 * query_size + kv_size) * self.hidden_size
        if self.has_bias:
            num_parameters += query_size + kv_size + self.hidden_size
        if self.has_qk_norm:
            num_parameters += 2 * self.head_size
        if self.has_sinks:
            num_parameters += num_heads
        return num_parameters


@dataclass(frozen=True, slots=True)
class _HeadAttention(ABC):
    """What the three have in common."""

    heads: Heads

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """How far back a token attends."""

    @abstractmethod
    def spec(self, options: KVCacheOptions) -> AttentionSpec:
        """The KV that the layer keeps."""

    @property
    def shard_units(self) -> int:
        """Query heads."""
        return self.heads.num_heads

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank."""
        return self.heads.num_parameters(tensor_parallel)

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """Scores and weighted sums over what is in reach.

        Per pair two FLOPs for each element of the key (the score) and of the value (the sum).
        """
        num_heads, _ = self.heads.on_rank(options.tensor_parallel)
        return MixingCost(
            reach=self.reach,
            flops_per_pair=4 * num_heads * self.heads.head_size,
            bytes_per_token=self.spec(options).token_bytes,
        )

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Queries, keys and values, and the output before its projection."""
        num_heads, num_kv_heads = self.heads.on_rank(tensor_parallel)
        return 2 * (num_heads + num_kv_heads) * self.heads.head_size


@dataclass(frozen=True, slots=True)
class FullAttention(_HeadAttention):
    """Each token attends to all tokens before it."""

    @property
    def reach(self) -> Reach:
        """All tokens before it."""
        return Everything()

    def spec(self, options: KVCacheOptions) -> FullAttentionSpec:
        """The KV of every token."""
        _, num_kv_heads = self.heads.on_rank(options.tensor_parallel)
        return FullAttentionSpec(
            block_size=options.block_size,
            num_kv_heads=num_kv_heads,
            head_size=self.heads.head_size,
            dtype=options.kv_dtype,
        )


@dataclass(frozen=True, slots=True)
class SlidingWindowAttention(_HeadAttention):
    """Each token attends to the last `window` tokens, itself included."""

    window: int

    @property
    def reach(self) -> Reach:
        """The window."""
        return Window(self.window)

    def spec(self, options: KVCacheOptions) -> SlidingWindowSpec:
        """The KV of the tokens in the window."""
        _, num_kv_heads = self.heads.on_rank(options.tensor_parallel)
        return SlidingWindowSpec(
            block_size=options.block_size,
            num_kv_heads=num_kv_heads,
            head_size=self.heads.head_size,
            dtype=options.kv_dtype,
            window=self.window,
        )


@dataclass(frozen=True, slots=True)
class ChunkedAttention(_HeadAttention):
    """Each token attends to those before it in its own chunk of `chunk` tokens."""

    chunk: int

    @property
    def reach(self) -> Reach:
        """The chunk."""
        return Chunk(self.chunk)

    def spec(self, options: KVCacheOptions) -> ChunkedLocalSpec:
        """The KV of the tokens in the chunk."""
        _, num_kv_heads = self.heads.on_rank(options.tensor_parallel)
        return ChunkedLocalSpec(
            block_size=options.block_size,
            num_kv_heads=num_kv_heads,
            head_size=self.heads.head_size,
            dtype=options.kv_dtype,
            chunk=self.chunk,
        )
