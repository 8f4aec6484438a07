"""Attention with a key and a value per KV head and token: full, sliding window, chunked."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvcache.specs import AttentionSpec, ChunkedLocalSpec, FullAttentionSpec, SlidingWindowSpec
from models_configs.parts import KVCacheOptions, MixingCost
from models_configs.quantization import StoredWeights, WeightFormat, Weights
from models_configs.reach import Chunk, Everything, Reach, Window

__all__ = ["ChunkedAttention", "FullAttention", "Heads", "SharedKVAttention", "SlidingWindowAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Query heads that share KV heads (grouped-query attention), and their weights."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    """Elements of one query or key."""
    head_size_v: int | None = None
    """Elements of one value, where that differs."""
    query_size: int | None = None
    """Width that the projections read, where it is not the hidden size."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    num_norm_parameters: int = 0
    """Learned norms over queries and keys (and values), on every rank."""
    gate_size: int = 0
    """Outputs of a projection that gates what attention gives: one per head, or one per element."""
    has_kv_projections: bool = True
    """Whether the layer has weights for keys and values of its own."""
    values_are_keys: bool = False
    """One projection gives both (Gemma-4), which are kept one beside the other all the same."""
    has_sinks: bool = False
    """A learned logit per query head that takes part in each softmax (gpt-oss): a weight, not KV."""
    weight_format: WeightFormat | None = None
    """Of the projections; None for unquantized."""

    @property
    def value_size(self) -> int:
        """Elements of one value."""
        return self.head_size if self.head_size_v is None else self.head_size_v

    def can_split(self, tensor_parallel: int) -> bool:
        """Whether ranks get equal numbers of query heads, and of KV heads or copies of one."""
        fewer, more = sorted((self.num_kv_heads, tensor_parallel))
        return self.num_heads % tensor_parallel == 0 and more % fewer == 0

    def on_rank(self, tensor_parallel: int) -> tuple[int, int]:
        """Query heads and KV heads on one rank.

        With fewer KV heads than ranks each rank holds a copy of one, as vLLM has it. Raises
        ValueError where the heads cannot be split evenly.
        """
        if not self.can_split(tensor_parallel):
            heads = f"{self.num_heads} attention heads"
            if self.num_heads % tensor_parallel == 0:
                heads = f"{self.num_kv_heads} KV heads"
            raise ValueError(f"{heads} cannot be split evenly over {tensor_parallel} ranks")
        return self.num_heads // tensor_parallel, max(1, self.num_kv_heads // tensor_parallel)

    def weights(self, tensor_parallel: int) -> Weights:
        """The four projections (q, k, v, o) and the gate; their biases, the norms of queries and keys, the sinks."""
        num_heads, num_kv_heads = self.on_rank(tensor_parallel)
        kv_size = self.head_size + self.value_size * (not self.values_are_keys)
        kv_width = num_kv_heads * kv_size * self.has_kv_projections
        qkv_width, output_width = num_heads * self.head_size + kv_width, num_heads * self.value_size
        read_size = self.hidden_size if self.query_size is None else self.query_size
        gate_width = self.gate_size // tensor_parallel
        return Weights(
            matrices=(qkv_width + gate_width) * read_size + output_width * self.hidden_size,
            others=qkv_width * self.has_qkv_bias
            + self.hidden_size * self.has_output_bias
            + self.num_norm_parameters
            + num_heads * self.has_sinks,
        )


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

    def can_split(self, tensor_parallel: int) -> bool:
        """Whether ranks get equal numbers of query heads, and of KV heads or copies of one."""
        return self.heads.can_split(tensor_parallel)

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank."""
        return self.heads.weights(tensor_parallel).total

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of those weights as published."""
        return self.heads.weights(tensor_parallel).num_bytes(element_bytes, self.heads.weight_format)

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The same by format."""
        return self.heads.weights(tensor_parallel).stored(element_bytes, self.heads.weight_format)

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """Scores and weighted sums over what is in reach.

        Per pair two FLOPs for each element of the key (the score) and of the value (the sum).
        """
        num_heads, _ = self.heads.on_rank(options.tensor_parallel)
        return MixingCost(
            reach=self.reach,
            flops_per_pair=2 * num_heads * (self.heads.head_size + self.heads.value_size),
            bytes_per_token=self.spec(options).token_bytes,
        )

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """Queries, keys and values, and the output before its projection."""
        num_heads, num_kv_heads = self.heads.on_rank(tensor_parallel)
        return (num_heads + num_kv_heads) * (self.heads.head_size + self.heads.value_size)


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
            head_size_v=self.heads.head_size_v,
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
            head_size_v=self.heads.head_size_v,
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
            head_size_v=self.heads.head_size_v,
            dtype=options.kv_dtype,
            chunk=self.chunk,
        )


@dataclass(frozen=True, slots=True)
class SharedKVAttention:
    """Attention that reads the keys and values of another layer, and so keeps nothing (Gemma-3n, Gemma-4)."""

    like: FullAttention | SlidingWindowAttention
    """What it would be with KV of its own."""

    @property
    def reach(self) -> Reach:
        """That of the layer whose KV it reads."""
        return self.like.reach

    def can_split(self, tensor_parallel: int) -> bool:
        """As with KV of its own."""
        return self.like.can_split(tensor_parallel)

    def num_parameters(self, tensor_parallel: int = 1) -> int:
        """Weights on one rank."""
        return self.like.num_parameters(tensor_parallel)

    def weight_bytes(self, element_bytes: int, tensor_parallel: int = 1) -> int:
        """Bytes of those weights as published."""
        return self.like.weight_bytes(element_bytes, tensor_parallel)

    def shared_weights(self, element_bytes: int, tensor_parallel: int = 1) -> tuple[StoredWeights, ...]:
        """The same by format."""
        return self.like.shared_weights(element_bytes, tensor_parallel)

    def spec(self, options: KVCacheOptions) -> None:
        """Nothing."""
        return

    def mixing_cost(self, options: KVCacheOptions) -> MixingCost:
        """The same arithmetic, and the other layer's KV read once more."""
        return self.like.mixing_cost(options)

    def activation_elements(self, tensor_parallel: int = 1) -> int:
        """As with KV of its own."""
        return self.like.activation_elements(tensor_parallel)
