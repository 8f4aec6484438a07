"""The frozen batch: what one forward pass computes, as step-time models see it."""

from typing import NamedTuple

__all__ = ["Batch"]


class Batch(NamedTuple):
    """What one forward pass computes, or `num_steps` equal ones in a row in which only decodes' contexts grow."""

    prefill_chunks: tuple[tuple[int, int], ...]
    """(new tokens, tokens computed before) of each request that is still in its prompt."""
    num_decodes: int
    """Requests that compute one token."""
    decode_context_tokens: int
    """Sum over the decodes of tokens computed before the first step."""
    decode_window_tokens: tuple[int, ...] = ()
    """The same sum for each distinct reach of the model: each request capped by the window, or counted in its chunk."""
    decode_window_growth: tuple[int, ...] = ()
    """By how many tokens each of those sums grows per step."""
    num_steps: int = 1

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens computed in the first step."""
        return sum([new for new, _ in self.prefill_chunks]) if self.prefill_chunks else 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in each step."""
        return self.num_prefill_tokens + self.num_decodes
