"""What each token of a request is, as a number: from the trace alone, never from a block table.

A trace's prefix id names everything up to the end of its block of tokens, so (id, position) says what a
token is and what stands before it. All other tokens are (request, position), like nobody else's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["TokenContent", "mixed"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
OWN = np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True, slots=True)
class TokenContent:
    """The tokens of one request; two requests have equal marks exactly where their beginnings are equal."""

    prefix_ids: Sequence[int]
    id_tokens: int
    """Tokens that each id names."""
    serial: int
    """Numbers the request within its trace."""

    def marks(self, num_tokens: int) -> np.ndarray:
        """[num_tokens], int64: a number for each position."""
        names = np.empty(num_tokens, dtype=np.uint64)
        num_named = min(num_tokens, len(self.prefix_ids) * self.id_tokens)
        if num_named:
            # A hash of an int is the int itself below 2**61, and small whatever its size.
            ids = np.fromiter(map(hash, self.prefix_ids), dtype=np.int64, count=len(self.prefix_ids))
            names[:num_named] = np.repeat(mixed(ids.view(np.uint64)), self.id_tokens)[:num_named]
        names[num_named:] = mixed(np.array([self.serial], dtype=np.uint64) ^ OWN)
        names += np.arange(1, num_tokens + 1, dtype=np.uint64) * GOLDEN
        marks: np.ndarray = mixed(names).view(np.int64)
        return marks


def mixed(values: np.ndarray) -> np.ndarray:
    """Numbers in which every bit depends on every bit of `values` (uint64; the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
