"""How far each attention type alone would hit, who shortened the hit, and which block was missing for more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvcache.manager import KVCacheManager, RequestBlocks
from kvcache.managers import SingleTypeManager

__all__ = ["Cut", "HitReport", "MissingBlock", "report_hit"]


@dataclass(frozen=True, slots=True)
class MissingBlock:
    """The first block of one attention type that a longer hit would have needed."""

    position: int
    start_token: int
    end_token: int
    """The first token behind the block."""
    resume_at: int
    """Tokens after which the request would have resumed, had the block been there (and others that it needs)."""
    keys: tuple[int, ...]
    """Those of its keys, one for each group, that find no block."""
    num_groups: int
    rounded_from: int | None = None
    """Tokens that the type has, where it is only that hits do not end there."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One attention type shortens the hit."""

    manager: int
    """Index of the type's manager."""
    before: int
    """Tokens that it was asked for, and tokens that it has."""
    after: int
    missing: MissingBlock | None
    """None: nothing is missing, but hits end on multiples of the alignment only."""


@dataclass(frozen=True, slots=True)
class HitReport:
    """A prefix hit, taken apart."""

    max_tokens: int
    """What could be hit at most: all known tokens but one, from which the next is sampled."""
    hit_tokens: int
    alignment: int
    alone: tuple[Cut, ...]
    """What each type, in the order of the managers, would have without the others."""
    cuts: tuple[Cut, ...]
    """Who shortened the hit, in order; the last one made it as short as it is."""


def report_hit(
    manager: KVCacheManager, blocks: RequestBlocks, num_tokens: int, computed_tokens: int
) -> HitReport | None:
    """Take apart the hit that a request of `num_tokens` known tokens would have now; None where nothing is cached.

    `computed_tokens` of its beginning have been computed by anybody so far: of what lies behind them
    only the first block is called missing. It leaves no trace that `find_hit` does not overwrite.
    """
    if not manager.coordinator.caches:
        return None
    search = _Search(manager, blocks, num_tokens - 1, computed_tokens)
    alone = tuple(search.cut(index, search.max_tokens) for index in range(len(manager.managers)))
    cuts = tuple(search.rounds(alone))
    return HitReport(
        search.max_tokens, cuts[-1].after if cuts else search.max_tokens, manager.scheduler_block, alone, cuts
    )


class _Search:
    """The prefix keys of one request, and the managers to ask."""

    def __init__(self, manager: KVCacheManager, blocks: RequestBlocks, max_tokens: int, computed_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._managers: Sequence[SingleTypeManager] = manager.managers
        self._alignment = manager.scheduler_block
        self._keys = blocks.keys.first(max_tokens // manager.hash_unit)
        self._computed_tokens = computed_tokens

    def cut(self, index: int, before: int) -> Cut:
        """What a type has of the first `before` tokens."""
        manager = self._managers[index]
        after = manager.find_hit(self._keys, before)
        return Cut(index, before, after, self._missing(manager, before, after))

    def rounds(self, alone: Sequence[Cut]) -> Iterator[Cut]:
        """Who shortens the hit, asked in turn as the coordinator asks: full attention first, until all agree."""
        full = [index for index, manager in enumerate(self._managers) if manager.spec.type_key[0] == "full"]
        others = [index for index in range(len(self._managers)) if index not in full]
        candidate = self.max_tokens
        turns = [*full, *others]
        while turns:
            before = candidate
            for index in turns:
                cut = alone[index] if candidate == self.max_tokens else self.cut(index, candidate)
                if cut.after < candidate:
                    candidate = cut.after
                    yield cut
            turns = others if candidate < before and not len(full) == len(others) == 1 else []

    def _missing(self, manager: SingleTypeManager, before: int, after: int) -> MissingBlock | None:
        """The first block that is missing to resume as late as could be, or None if `after` is that."""
        alignment = self._alignment
        if before // alignment * alignment <= after:
            return None
        resume_at = min(before, self._computed_tokens) // alignment * alignment
        missing = self._first_missing(manager, resume_at) if resume_at > after else None
        missing = missing or self._first_missing(manager, (after // alignment + 1) * alignment)
        if missing is None:
            return None
        # Everything up to the block is there, were it not that hits end on the alignment.
        first_needed = manager.first_hit_position(missing.resume_at) * manager.block_size
        is_rounded = first_needed <= after < missing.start_token < after + alignment
        return replace(missing, rounded_from=missing.start_token) if is_rounded else missing

    def _first_missing(self, manager: SingleTypeManager, resume_at: int) -> MissingBlock | None:
        """The first block that is missing to resume after so many tokens."""
        size = manager.block_size
        for position in range(manager.first_hit_position(resume_at), resume_at // size):
            (key,) = manager.block_keys(self._keys, position, position + 1)
            keys = tuple(key + offset for offset in manager.key_offsets if key + offset not in manager.block_of)
            if keys:
                return MissingBlock(
                    position, position * size, (position + 1) * size, resume_at, keys, manager.num_groups
                )
        return None
