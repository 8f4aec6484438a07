"""KV cache specs: what one layer of each attention type must keep, and how many bytes a page of it takes.

All sizes are those of one layer on one tensor-parallel rank. Page formulas follow vLLM 0.32
(`v1/kv_cache_interface.py`); the terms are those of the hybrid KV-cache manager's design document.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Protocol, Self

__all__ = [
    "DTYPE_BYTES",
    "AttentionSpec",
    "ChunkedLocalSpec",
    "FullAttentionSpec",
    "KVCacheSpec",
    "MLASpec",
    "MambaSpec",
    "SlidingWindowSpec",
    "cdiv",
]

DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient of two integers, rounded up."""
    return -(-numerator // denominator)


class KVCacheSpec(Protocol):
    """What the planner asks of every spec; each attention type answers for itself."""

    kind: ClassVar[str]
    """One of full, sliding, chunked, mla, mamba."""

    @property
    def block_size(self) -> int:
        """Tokens in one block."""

    @property
    def content_bytes(self) -> int:
        """Bytes of one block in one layer on one rank, without padding."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer on one rank, padding included."""

    def max_blocks_per_request(self, num_tokens: int, max_in_flight_tokens: int) -> int:
        """Blocks that a request of `num_tokens` can ever hold in one group: the bound of the start-up check.

        `max_in_flight_tokens` are the tokens that can be scheduled but not yet settled: they keep
        blocks alive which have already left a window.
        """

    def blocks_while_decoding(self, num_tokens: int) -> int:
        """Blocks that a request of `num_tokens` computed ones holds in one group between two steps, at most."""

    def with_page_bytes(self, page_bytes: int) -> "KVCacheSpec":
        """The same layer with a larger page: by a larger block where that fits, else by padding.

        Raises ValueError where neither is possible.
        """

    def with_block_size(self, block_size: int) -> "KVCacheSpec":
        """The same layer with blocks of `block_size` tokens."""

    @property
    def type_key(self) -> tuple[object, ...]:
        """Layers with equal keys always need the same blocks of the same tokens, whatever their page bytes."""

    @property
    def unmarked(self) -> "KVCacheSpec":
        """The spec without marks that change what is computed but not what is kept."""

    def keeping_everything(self, block_size: int) -> "KVCacheSpec":
        """The spec under a manager that frees nothing before the request ends; `block_size` is full attention's."""


def _check_at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What every layer that keeps one entry per token has in common."""

    block_size: int
    """Tokens in one block."""
    num_kv_heads: int
    """KV heads on this rank."""
    head_size: int
    """Elements of one key; values are as long unless `head_size_v` says otherwise."""
    head_size_v: int | None = None
    dtype: str = "bfloat16"
    padded_page_bytes: int | None = None

    kind: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        _check_at_least_one(block_size=self.block_size, num_kv_heads=self.num_kv_heads, head_size=self.head_size)
        _check_dtype(self.dtype)
        if self.padded_page_bytes is not None and self.padded_page_bytes < self.content_bytes:
            raise ValueError(
                f"a page of {self.padded_page_bytes:,} bytes cannot hold the {self.content_bytes:,} bytes of a block"
            )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer on one rank: heads x (key + value) x element."""
        value_size = self.head_size if self.head_size_v is None else self.head_size_v
        return self.num_kv_heads * (self.head_size + value_size) * DTYPE_BYTES[self.dtype]

    @property
    def content_bytes(self) -> int:
        """Bytes of one block without padding."""
        return self.block_size * self.token_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer on one rank, padding included."""
        return self.content_bytes if self.padded_page_bytes is None else self.padded_page_bytes

    @property
    def reach(self) -> tuple[str, int] | None:
        """("window" or "chunk", tokens): how far back a token attends; None: to all tokens."""
        return None

    def seen_before(self, num_computed: int) -> int:
        """How many of the `num_computed` tokens before it the next token attends to."""
        if self.reach is None:
            return num_computed
        kind, size = self.reach
        return num_computed % size if kind == "chunk" else min(num_computed, size - 1)

    def with_block_size(self, block_size: int) -> Self:
        """The same layer with blocks of `block_size` tokens."""
        return replace(self, block_size=block_size)

    def with_page_bytes(self, page_bytes: int) -> Self:
        """The same layer with a larger page: by a larger block where it divides evenly, else by padding."""
        if page_bytes % self.page_bytes == 0:
            return replace(self, block_size=self.block_size * (page_bytes // self.page_bytes))
        return replace(self, padded_page_bytes=page_bytes)

    @property
    def unmarked(self) -> Self:
        """The spec itself."""
        return self

    def _as_full(self, block_size: int, window: int | None = None, chunk: int | None = None) -> "FullAttentionSpec":
        grown_bytes = block_size * self.token_bytes
        return FullAttentionSpec(
            block_size=block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            head_size_v=self.head_size_v,
            dtype=self.dtype,
            padded_page_bytes=None if self.padded_page_bytes is None else max(self.padded_page_bytes, grown_bytes),
            window=window,
            chunk=chunk,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeepsEverything(AttentionSpec):
    """What layers have in common that keep every token until the request ends."""

    def max_blocks_per_request(self, num_tokens: int, max_in_flight_tokens: int) -> int:
        """All blocks of the request."""
        return cdiv(num_tokens, self.block_size)

    def blocks_while_decoding(self, num_tokens: int) -> int:
        """All blocks of the request."""
        return cdiv(num_tokens, self.block_size)

    @property
    def type_key(self) -> tuple[object, ...]:
        """All layers that keep every token are of one type."""
        return "full", self.block_size

    def keeping_everything(self, block_size: int) -> Self:
        """The spec itself: it does already."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(_KeepsEverything):
    """A layer whose tokens attend to all tokens before them: every token's KV stays until the request ends.

    `window` or `chunk` mark a layer that computes less but keeps everything: a sliding-window or
    chunked layer while the hybrid manager is off.
    """

    window: int | None = None
    chunk: int | None = None

    kind: ClassVar[str] = "full"

    @property
    def reach(self) -> tuple[str, int] | None:
        """What it is marked with."""
        if self.window is not None:
            return "window", self.window
        return None if self.chunk is None else ("chunk", self.chunk)

    @property
    def unmarked(self) -> Self:
        """The spec without its window or chunk."""
        return replace(self, window=None, chunk=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MLASpec(_KeepsEverything):
    """Multi-head latent attention: one latent vector per token, shared by all heads and not split over ranks.

    `head_size` is the length of that vector (latent rank + rotary part, for instance 512 + 64).
    """

    num_kv_heads: int = 1
    head_size_v: int | None = 0

    kind: ClassVar[str] = "mla"

    def with_page_bytes(self, page_bytes: int) -> Self:
        """The same layer with a larger block; a latent page cannot be padded (it is indexed in whole rows)."""
        if page_bytes % self.page_bytes:
            raise ValueError(
                f"an MLA page of {self.page_bytes:,} bytes cannot become one of {page_bytes:,}: not a whole multiple"
            )
        return replace(self, block_size=self.block_size * (page_bytes // self.page_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """A layer whose tokens attend to the last `window` tokens, the current one included."""

    window: int

    kind: ClassVar[str] = "sliding"

    def __post_init__(self) -> None:
        AttentionSpec.__post_init__(self)
        _check_at_least_one(window=self.window)

    def max_blocks_per_request(self, num_tokens: int, max_in_flight_tokens: int) -> int:
        """The window plus what is in flight, and one more because a window need not start at a block's edge."""
        return cdiv(min(self.window - 1 + max_in_flight_tokens, num_tokens), self.block_size) + 1

    def blocks_while_decoding(self, num_tokens: int) -> int:
        """The tokens that the next query sees, and one block more because they need not start at a block's edge."""
        return min(cdiv(num_tokens, self.block_size), cdiv(self.window - 1, self.block_size) + 1)

    @property
    def reach(self) -> tuple[str, int]:
        """Its window."""
        return "window", self.window

    @property
    def type_key(self) -> tuple[object, ...]:
        """Layers of one window and block size."""
        return "sliding", self.block_size, self.window

    def keeping_everything(self, block_size: int) -> FullAttentionSpec:
        """A full-attention layer, marked with the window that it computes."""
        return self._as_full(block_size, window=self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocalSpec(AttentionSpec):
    """A layer whose tokens attend to the tokens of their own chunk of `chunk` tokens only (Llama-4)."""

    chunk: int

    kind: ClassVar[str] = "chunked"

    def __post_init__(self) -> None:
        AttentionSpec.__post_init__(self)
        _check_at_least_one(chunk=self.chunk)

    def max_blocks_per_request(self, num_tokens: int, max_in_flight_tokens: int) -> int:
        """One chunk plus what is in flight."""
        return cdiv(min(self.chunk + max_in_flight_tokens, num_tokens), self.block_size)

    def blocks_while_decoding(self, num_tokens: int) -> int:
        """One chunk."""
        return cdiv(min(self.chunk, num_tokens), self.block_size)

    @property
    def reach(self) -> tuple[str, int]:
        """Its chunk."""
        return "chunk", self.chunk

    @property
    def type_key(self) -> tuple[object, ...]:
        """Layers of one chunk and block size."""
        return "chunked", self.block_size, self.chunk

    def keeping_everything(self, block_size: int) -> FullAttentionSpec:
        """A full-attention layer, marked with the chunk that it computes."""
        return self._as_full(block_size, chunk=self.chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """A layer that keeps a state of constant size instead of tokens: one block holds one state.

    `cache_mode` is "none" (one state for the whole request, no prefix cache) or "align" (states are
    kept at block boundaries, so that a prefix can be resumed there).
    """

    block_size: int
    """Tokens between two states that may be cached."""
    shapes: tuple[tuple[int, ...], ...]
    """Shape of each part of the state (convolution, recurrent), on this rank."""
    dtypes: tuple[str, ...]
    cache_mode: str = "none"
    num_speculative_blocks: int = 0
    padded_page_bytes: int | None = None

    kind: ClassVar[str] = "mamba"

    def __post_init__(self) -> None:
        _check_at_least_one(block_size=self.block_size)
        if len(self.shapes) != len(self.dtypes):
            raise ValueError(f"{len(self.shapes)} state shapes but {len(self.dtypes)} dtypes")
        for dtype in self.dtypes:
            _check_dtype(dtype)
        if self.cache_mode not in ("none", "align"):
            raise ValueError(f'cache_mode must be "none" or "align", got {self.cache_mode!r}')
        if self.padded_page_bytes is not None and self.padded_page_bytes < self.state_bytes:
            raise ValueError(
                f"a page of {self.padded_page_bytes:,} bytes cannot hold a state of {self.state_bytes:,} bytes"
            )

    @property
    def state_bytes(self) -> int:
        """Bytes of one state without padding."""
        return sum(prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    @property
    def content_bytes(self) -> int:
        """Bytes of one block without padding: one state."""
        return self.state_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer on one rank, padding included."""
        return self.state_bytes if self.padded_page_bytes is None else self.padded_page_bytes

    def with_block_size(self, block_size: int) -> Self:
        """The same layer with a state every `block_size` tokens."""
        return replace(self, block_size=block_size)

    def in_mode(self, cache_mode: str, block_size: int) -> Self:
        """The same state, kept every `block_size` tokens or, in mode "none", once."""
        return replace(self, cache_mode=cache_mode, block_size=block_size)

    def with_page_bytes(self, page_bytes: int) -> Self:
        """The same state in a larger page: always by padding, its size does not depend on the block."""
        return replace(self, padded_page_bytes=page_bytes)

    def max_blocks_per_request(self, num_tokens: int, max_in_flight_tokens: int) -> int:
        """The running state and, where states are cached, the one it is copied from; one per speculative token."""
        return (2 if self.cache_mode == "align" else 1) + self.num_speculative_blocks

    def blocks_while_decoding(self, num_tokens: int) -> int:
        """The running state, and one per speculative token."""
        return 1 + self.num_speculative_blocks

    @property
    def type_key(self) -> tuple[object, ...]:
        """Layers of one state size and block size."""
        return "mamba", self.block_size, self.page_bytes, self.num_speculative_blocks

    @property
    def unmarked(self) -> Self:
        """The spec itself."""
        return self

    def keeping_everything(self, block_size: int) -> Self:
        """The spec itself: a state has no tokens to keep."""
        return self
