"""What of a request is hashed, and where others may resume: the same for all attention types of a pool."""

from dataclasses import dataclass

__all__ = ["CachePolicy"]


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """In what steps prefixes are hashed, hit and retained; the same for all managers of a pool."""

    hash_unit: int
    """Tokens that one prefix key covers."""
    alignment: int
    """Tokens of which every hit is a multiple."""
    retention_interval: int | None = 0
    """Tokens between windows or states that are kept for later hits; None keeps all, 0 none but the prompt's end."""
    caches_every_block: bool = False
    """Even those that no hit can use."""
