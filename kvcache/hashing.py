"""Prefix keys: one number for each hash unit of a request, equal exactly where all tokens so far are equal.

A server hashes each block's tokens together with the hash of the block before. A simulator may know
more than tokens: a trace's prefix ids are such hashes already, and what a request generates is its
own. So a key is an int from one of two ranges: ids (0 and up) for content that others may share, and
negative numbers for content that is the request's own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np

__all__ = ["PrefixKeys", "hash_tokens", "keys_of_prefix_ids"]

# Hash units of one request, at most: 2**26 units of 16 tokens are a billion tokens.
_UNITS_PER_REQUEST = 1 << 26
# Prefix ids below it can be multiplied by any block size within 64 bits.
_LARGEST_ID = 1 << 40


class PrefixKeys:
    """The prefix keys of one request: some that others may share, then its own without end.

    They are multiples of `stride`: between two of them there is room for one key per KV cache group.
    They are worked out when first asked for, not while the request waits.
    """

    __slots__ = ("_next_own", "_serial", "_shared", "_units", "num_shared", "stride")

    def __init__(self, shared: Sequence[int], serial: int) -> None:
        """`shared` are the prefixes of the first hash units, as numbers; `serial` numbers the request, from 0."""
        self.stride = 1
        self.num_shared = len(shared)
        """Hash units at the beginning that another request may share."""
        self._shared: Callable[[], Sequence[int]] = lambda: shared
        self._serial = serial
        self._units: list[int] | None = None
        self._next_own = 0

    @classmethod
    def of_prefix_ids(cls, prefix_ids: Sequence[int], id_tokens: int, hash_unit: int, serial: int) -> "PrefixKeys":
        """The keys that a trace's prefix ids stand for, each of `id_tokens` tokens."""
        keys = cls((), serial)
        if prefix_ids:
            keys.num_shared = len(prefix_ids) * id_tokens // hash_unit
            keys._shared = partial(keys_of_prefix_ids, prefix_ids, id_tokens, hash_unit)
        return keys

    def first(self, num_units: int) -> list[int]:
        """The keys of at least the first `num_units` hash units."""
        units = self._units
        if units is None:
            units = self._start()
        missing = num_units - len(units)
        if missing > 0:
            end = self._next_own - missing * self.stride
            units.extend(range(self._next_own, end, -self.stride))
            self._next_own = end
        return units

    def _start(self) -> list[int]:
        stride = self.stride
        self._units = units = [key * stride for key in self._shared()] if stride != 1 else list(self._shared())
        self._next_own = -(self._serial * _UNITS_PER_REQUEST + 1) * stride
        return units


def keys_of_prefix_ids(prefix_ids: Sequence[int], id_tokens: int, hash_unit: int) -> list[int]:
    """The keys of all hash units that end within the whole blocks which `prefix_ids` name.

    Each id stands for everything up to the end of its block of `id_tokens` tokens; `hash_unit` (tokens)
    need not divide it: the key is then the id together with the place within its block.
    """
    num_units = len(prefix_ids) * id_tokens // hash_unit
    if max(prefix_ids, default=0) >= _LARGEST_ID:  # numbers of any size, one by one
        ends = range(hash_unit - 1, num_units * hash_unit, hash_unit)
        return [prefix_ids[end // id_tokens] * id_tokens + end % id_tokens for end in ends]
    last_token = (np.arange(num_units, dtype=np.int64) + 1) * hash_unit - 1
    ids = np.asarray(prefix_ids, dtype=np.int64)
    keys: list[int] = (ids[last_token // id_tokens] * id_tokens + last_token % id_tokens).tolist()
    return keys


def hash_tokens(tokens: Sequence[int], hash_unit: int) -> list[int]:
    """Chained hashes of the full hash units of a token list: 63-bit numbers, the same in every process."""
    keys = []
    parent = b""
    for end in range(hash_unit, len(tokens) + 1, hash_unit):
        unit = np.asarray(tokens[end - hash_unit : end], dtype=np.int64).tobytes()
        parent = blake2b(parent + unit, digest_size=8).digest()
        keys.append(int.from_bytes(parent, "big") >> 1)
    return keys
