"""Errors that a caller of the allocator may want to tell apart."""

__all__ = ["DeviceMemoryError", "InvariantError", "KVCacheError", "PoolTooSmallError", "UnsupportedLayersError"]


class KVCacheError(ValueError):
    """A configuration that no server would start with; the message is one line for a person."""


class PoolTooSmallError(KVCacheError):
    """The pool cannot hold a single request of the longest allowed length."""


class DeviceMemoryError(KVCacheError):
    """A device has too little free memory for the pool."""


class UnsupportedLayersError(KVCacheError):
    """These layers cannot be given pages of equal size, or not in this mode."""


class InvariantError(AssertionError):
    """The allocator contradicts itself: a bug, never a shortage. The message starts with the invariant's name."""
