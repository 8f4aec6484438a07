"""How far back a token attends, and what that leaves of a request's context.

# positions of one request
# 0 ........ first seen ........ num_computed ........ num_computed + num_new
#  not seen |    seen before    |   the new tokens: each sees itself and what is before it
"""

import sys
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Chunk", "Everything", "Reach", "Window"]


class Reach(Protocol):
    """Which earlier tokens of its request a token attends to; it always attends to itself."""

    @property
    def key(self) -> tuple[str, int] | None:
        """What it is called in KV cache specs (`AttentionSpec.reach`)."""

    def seen_before(self, num_computed: int) -> int:
        """How many of the `num_computed` tokens before it the next token attends to."""

    def next_break(self, num_computed: int) -> int:
        """The next number of computed tokens at which `seen_before` does not become one more."""

    def pairs_from_start(self, num_tokens: int) -> int:
        """Pairs of a token and one that it attends to, over the first `num_tokens` of a request."""

    def num_pairs(self, num_new: int, num_computed: int) -> int:
        """The same over `num_new` tokens which follow `num_computed`: the unit of attention's FLOPs."""
        return self.pairs_from_start(num_computed + num_new) - self.pairs_from_start(num_computed)


def _check_at_least_one(name: str, num_tokens: int) -> None:
    if num_tokens < 1:
        raise ValueError(f"a {name} must be at least 1 token, got {num_tokens}")


@dataclass(frozen=True, slots=True)
class Everything(Reach):
    """All tokens before it."""

    @property
    def key(self) -> None:
        """It needs no name: it is what all layers do that are not marked."""

    def seen_before(self, num_computed: int) -> int:
        """All of them."""
        return num_computed

    def next_break(self, num_computed: int) -> int:
        """Never."""
        return sys.maxsize

    def pairs_from_start(self, num_tokens: int) -> int:
        """A triangle."""
        return num_tokens * (num_tokens + 1) // 2

    def num_pairs(self, num_new: int, num_computed: int) -> int:
        """The difference of two triangles."""
        return num_new * (2 * num_computed + num_new + 1) // 2


@dataclass(frozen=True, slots=True)
class Window(Reach):
    """The last `num_tokens` tokens, the current one included."""

    num_tokens: int

    def __post_init__(self) -> None:
        _check_at_least_one("window", self.num_tokens)

    @property
    def key(self) -> tuple[str, int]:
        """A window of so many tokens."""
        return "window", self.num_tokens

    def seen_before(self, num_computed: int) -> int:
        """At most the window less the token itself."""
        return min(num_computed, self.num_tokens - 1)

    def next_break(self, num_computed: int) -> int:
        """When the window is full, from then on with each token."""
        return max(self.num_tokens, num_computed + 1)

    def pairs_from_start(self, num_tokens: int) -> int:
        """A triangle until the window is full, then a band."""
        rising = min(num_tokens, self.num_tokens)
        return rising * (rising + 1) // 2 + (num_tokens - rising) * self.num_tokens


@dataclass(frozen=True, slots=True)
class Chunk(Reach):
    """The tokens before it in its own chunk: chunks of `num_tokens` start at multiples of that number."""

    num_tokens: int

    def __post_init__(self) -> None:
        _check_at_least_one("chunk", self.num_tokens)

    @property
    def key(self) -> tuple[str, int]:
        """A chunk of so many tokens."""
        return "chunk", self.num_tokens

    def seen_before(self, num_computed: int) -> int:
        """Those since the chunk began."""
        return num_computed % self.num_tokens

    def next_break(self, num_computed: int) -> int:
        """When the next chunk begins."""
        return (num_computed // self.num_tokens + 1) * self.num_tokens

    def pairs_from_start(self, num_tokens: int) -> int:
        """A triangle for each chunk."""
        num_chunks, rest = divmod(num_tokens, self.num_tokens)
        return num_chunks * self.num_tokens * (self.num_tokens + 1) // 2 + rest * (rest + 1) // 2
