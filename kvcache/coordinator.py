"""Coordinators: how all groups of a model agree on one prefix hit.

A hit is a length at which every attention type can resume. With one type it is that type's own
answer; with several, each may shorten the candidate until none does (the design document's
"full first, then X within it" is the first round of that).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.managers import CachePolicy, SingleTypeManager

__all__ = ["Coordinator", "HybridCoordinator", "NoPrefixCacheCoordinator", "PrefixHit", "UnitaryCoordinator"]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What a new request need not compute."""

    num_tokens: int
    """Tokens that every attention type has."""
    junction: int = 0
    """Tokens that at least one type has, where that is more: here requests part, so the others should keep it too."""


NO_HIT = PrefixHit(0)


class NoPrefixCacheCoordinator:
    """Prefix caching is off: nothing is hit, nothing is hashed."""

    caches = False

    def find_hit(self, keys: list[int], max_tokens: int, known_bound: int) -> PrefixHit:
        """Never a hit."""
        return NO_HIT

    def num_cacheable(self, num_tokens: int) -> int:
        """Nothing is hashed."""
        return 0


class UnitaryCoordinator:
    """One attention type: its own answer is everybody's."""

    caches = True

    def __init__(self, manager: SingleTypeManager, policy: CachePolicy) -> None:
        self._manager = manager
        self._alignment = policy.alignment

    def find_hit(self, keys: list[int], max_tokens: int, known_bound: int) -> PrefixHit:
        """The type's own longest hit of up to `max_tokens`."""
        return PrefixHit(self._manager.find_hit(keys, max_tokens))

    def num_cacheable(self, num_tokens: int) -> int:
        """Every full block may be hit."""
        return num_tokens


class HybridCoordinator:
    """Several attention types: the longest length at which all can resume."""

    caches = True

    def __init__(self, managers: Sequence[SingleTypeManager], policy: CachePolicy) -> None:
        # Full attention first: it is found from the left, and whatever is shorter is a hit of it too.
        self._full = [manager for manager in managers if manager.spec.type_key[0] == "full"]
        self._others = [manager for manager in managers if manager.spec.type_key[0] != "full"]
        self._alignment = policy.alignment

    def find_hit(self, keys: list[int], max_tokens: int, known_bound: int) -> PrefixHit:
        """Shorten the candidate by each type in turn until all accept it.

        It is known already that they do not agree on more than `known_bound` tokens. What one type has
        beyond that still counts for the junction, so the bound helps only behind full attention.
        """
        longest = 0
        candidate = max_tokens
        for manager in self._full:
            candidate = manager.find_hit(keys, candidate)
            longest = max(longest, candidate)
        if self._full:
            candidate = min(candidate, known_bound)
        one_round = len(self._full) == 1 and len(self._others) == 1
        while True:
            before = candidate
            for manager in self._others:
                candidate = manager.find_hit(keys, candidate)
                longest = max(longest, candidate)
            if candidate >= before or one_round:
                return PrefixHit(candidate, longest if longest > candidate else 0)

    def num_cacheable(self, num_tokens: int) -> int:
        """Hits end on the alignment, so what lies beyond it waits."""
        return num_tokens // self._alignment * self._alignment


Coordinator = NoPrefixCacheCoordinator | UnitaryCoordinator | HybridCoordinator


def coordinator_for(
    managers: Sequence[SingleTypeManager], num_groups: int, caching: bool, policy: CachePolicy
) -> Coordinator:
    """The coordinator that these groups need."""
    if not caching:
        return NoPrefixCacheCoordinator()
    if num_groups == 1:
        return UnitaryCoordinator(managers[0], policy)
    return HybridCoordinator(managers, policy)
