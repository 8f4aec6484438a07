"""What all attention types share: block tables whose beginnings may no longer be needed.

A manager serves all groups of one spec. They always hold the same positions, so one table with
`num_groups` ids for each position stands for all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import ClassVar

from kvcache.block_pool import BlockPool
from kvcache.hashing import PrefixKeys
from kvcache.managers.block_table import NEVER, BlockTable
from kvcache.managers.cache_policy import CachePolicy
from kvcache.managers.load import Load
from kvcache.specs import KVCacheSpec, cdiv
from kvcache.tally import Tally

__all__ = ["NEVER", "BlockTable", "SingleTypeManager"]


class SingleTypeManager(ABC):
    """Block tables and prefix hits of one attention type.

    A subclass says which tokens are still needed, what counts as a hit, and what is worth caching.
    """

    gives_blocks_back: ClassVar[bool] = False
    """Whether a request can be longer than what it ever holds, so that `max_blocks` bounds its need."""

    def __init__(self, spec: KVCacheSpec, groups: range, pool: BlockPool, policy: CachePolicy, max_blocks: int) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.groups = groups
        self.num_groups = len(groups)
        self.number_keys(groups)
        self.pool = pool
        self.policy = policy
        self.max_blocks = max_blocks
        self.units_per_block = max(1, spec.block_size // policy.hash_unit)
        self.block_of = pool.block_of
        self.tally = Tally(self.num_groups)
        self.is_anchored = False
        """Whether its blocks can be hit only together with those of full attention."""

    def number_keys(self, offsets: range) -> None:
        """Add these to the prefix keys, one for each group; the groups' numbers, unless someone says otherwise."""
        self.key_offsets = list(offsets)
        self.is_first_alone = offsets == range(1)

    # What differs by attention type.

    @abstractmethod
    def first_needed_token(self, num_computed: int) -> int:
        """The first token that the query at position `num_computed` still reads."""

    @abstractmethod
    def computed_when_unneeded(self, position: int) -> int:
        """The fewest computed tokens at which the block at `position` is no longer needed."""

    @abstractmethod
    def find_hit(self, keys: list[int], max_tokens: int) -> int:
        """Tokens of the longest prefix, up to `max_tokens`, that this type can resume from.

        `keys` holds the prefix key of each hash unit, at least `max_tokens // hash_unit` of them.
        """

    def retained(self, start: int, end: int, boundaries: Collection[int]) -> Iterable[tuple[int, int]]:
        """Ranges of positions from `start` to `end` that are worth caching; all, unless a type says otherwise.

        `boundaries` are the tokens after which another request is expected to continue.
        """
        return ((start, end),)

    # Looking up.

    def block_keys(self, keys: list[int], start: int, end: int) -> list[int]:
        """The prefix keys of the blocks at positions `start` to `end`."""
        units = self.units_per_block
        return keys[start:end] if units == 1 else keys[(start + 1) * units - 1 : end * units : units]

    def group_keys(self, keys: list[int]) -> list[int]:
        """Each key once for every group, position by position."""
        if self.is_first_alone:
            return keys
        return [key + offset for key in keys for offset in self.key_offsets]

    def is_cached(self, key: int) -> bool:
        """Whether every group has a block for the key."""
        block_of = self.block_of
        for offset in self.key_offsets:  # noqa: SIM110  asked very often: a generator would cost more
            if key + offset not in block_of:
                return False
        return True

    def first_missing(self, keys: list[int], start: int, end: int) -> int:
        """The first position from `start` to `end` whose block is not cached, or `end`.

        It is quick where a cached block implies that those before it are cached too. So it is where requests
        hold and give back a beginning as a whole: what comes later is always reused earlier. Then a
        bisection finds it.
        """
        units = self.units_per_block
        if not self.pool.keeps_beginnings:
            while start < end and self.is_cached(keys[(start + 1) * units - 1]):
                start += 1
            return start
        while start < end:
            middle = (start + end) // 2
            if self.is_cached(keys[(middle + 1) * units - 1]):
                start = middle + 1
            else:
                end = middle
        return start

    def cached_among(self, keys: list[int], start: int, end: int) -> list[int]:
        """The positions from `start` to `end` whose blocks are cached."""
        units = self.units_per_block
        return [at for at in range(start, end) if self.is_cached(keys[(at + 1) * units - 1])]

    def first_hit_position(self, hit_tokens: int) -> int:
        """The first block that a request which resumes after `hit_tokens` needs."""
        return max(0, self.first_needed_token(hit_tokens)) // self.block_size

    def hit_blocks(self, keys: list[int], hit_tokens: int) -> list[int]:
        """Ids of the cached blocks that a hit of `hit_tokens` holds, in table order."""
        hit_keys = self.block_keys(keys, self.first_hit_position(hit_tokens), hit_tokens // self.block_size)
        return list(map(self.block_of.__getitem__, self.group_keys(hit_keys)))

    # Counting.

    def num_blocks_at_admission(self, num_tokens: int, hit_tokens: int, capped: bool) -> int:
        """Blocks to take for a new request of `num_tokens` slots beside those of its hit.

        `capped` asks for the whole request at once and knows that a window gives blocks back on the way.
        """
        required = self._required_blocks(num_tokens, capped)
        have = max(self.first_needed_token(hit_tokens) // self.block_size, hit_tokens // self.block_size)
        return max(required - have, 0) * self.num_groups

    def _required_blocks(self, num_tokens: int, capped: bool) -> int:
        """Positions of a request of `num_tokens`, those at its beginning included that it gives back on the way.

        `capped`: the most that it holds at any time instead, if that is less.
        """
        required = cdiv(num_tokens, self.block_size)
        return min(required, self.max_blocks) if capped and self.gives_blocks_back else required

    def num_blocks_to_the_end(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that a request with a table still has to take until it has all of `num_tokens`."""
        return max(self._required_blocks(num_tokens, True) - table.num_slots // self.block_size, 0) * self.num_groups

    def num_new_blocks(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks to take so that the table has slots for `num_tokens`."""
        missing = num_tokens - table.num_slots
        return cdiv(missing, self.block_size) * self.num_groups if missing > 0 else 0

    def num_empty_slots(self, table: BlockTable, num_computed: int) -> int:
        """Slots of held blocks, in each group, that have no token yet when `num_computed` are there."""
        return table.num_slots - num_computed if table.ids else 0

    # Changing tables.

    def new_table(self, keys: PrefixKeys, prompt_tokens: int) -> BlockTable:
        """An empty table for one request."""
        return BlockTable(self, keys, prompt_tokens)

    def take_hit(self, table: BlockTable, blocks: list[int], hit_tokens: int) -> None:
        """Start an empty table with the cached `blocks` of a hit."""
        end = hit_tokens // self.block_size
        table.num_slots = hit_tokens
        table.num_cached = end
        table.first_held = end - len(blocks) // self.num_groups
        table.free_at = self.computed_when_unneeded(table.first_held)
        self.tally.num_given_back += table.first_held
        if blocks:
            self.pool.touch(blocks, self.tally)
            self.tally.num_positions += end - table.first_held
            table.ids = blocks
            table.mark_hashed(table.first_held, end)

    def extend(self, table: BlockTable, num_tokens: int) -> None:
        """Take blocks until the table has slots for `num_tokens`."""
        missing = num_tokens - table.num_slots
        if missing <= 0:
            return
        num_new = cdiv(missing, self.block_size)
        if not table.ids:
            table.free_at = self.computed_when_unneeded(table.first_held)
        table.num_slots += num_new * self.block_size
        self.tally.num_positions += num_new
        table.ids += self._take_positions(num_new, table.ids)

    def _take_positions(self, num_new: int, beside: list[int]) -> list[int]:
        """Blocks for so many positions, the groups' next to each other for each."""
        num_groups = self.num_groups
        taken = self.pool.take(num_new * num_groups, beside)
        if num_new == 1 or num_groups == 1:
            return taken
        by_position = [0] * len(taken)
        for nth in range(num_groups):  # each group takes its blocks in turn
            by_position[nth::num_groups] = taken[nth * num_new : (nth + 1) * num_new]
        return by_position

    # What arrives from elsewhere: blocks are taken now, and hashed once their contents are there.

    def plan_load(self, keys: list[int], hit_tokens: int, num_tokens: int) -> Load:
        """What a request needs that resumes after `num_tokens`; cached blocks of the first `hit_tokens` are used."""
        positions = range(self.first_hit_position(num_tokens), cdiv(num_tokens, self.block_size))
        stop, units = min(positions.stop, hit_tokens // self.block_size), self.units_per_block
        cached = self.cached_among(keys, positions.start, stop)
        hit_keys = self.group_keys([keys[(at + 1) * units - 1] for at in cached])
        return Load(positions, cached, list(map(self.block_of.__getitem__, hit_keys)), [])

    def num_blocks_of_load(self, load: Load) -> int:
        """Blocks to take for it."""
        return load.num_missing * self.num_groups

    def num_blocks_beyond(self, load: Load, num_tokens: int) -> int:
        """Blocks to take for a load and for what comes after it, up to `num_tokens`."""
        have = load.positions.start + len(load.cached)
        return max(self._required_blocks(num_tokens, True) - have, 0) * self.num_groups

    def take_load(self, table: BlockTable, load: Load) -> None:
        """Start an empty table with the blocks of a load; the cached ones were touched."""
        positions, num_groups = load.positions, self.num_groups
        new = self._take_positions(load.num_missing, load.cached_blocks)
        table.ids = new if not load.cached else self._interleaved(load, new)
        table.first_held = table.num_cached = positions.start
        table.num_slots = positions.stop * self.block_size
        table.free_at = self.computed_when_unneeded(positions.start)
        for at in load.cached:
            table.mark_hashed(at, at + 1)
            table.num_cached += at == table.num_cached
        self.tally.num_given_back += positions.start
        self.tally.num_positions += len(table.ids) // num_groups

    def _interleaved(self, load: Load, new: list[int]) -> list[int]:
        """Cached and new blocks in the order of positions."""
        cached, ids, size = set(load.cached), [], self.num_groups
        next_cached = next_new = 0
        for at in load.positions:
            if at in cached:
                ids += load.cached_blocks[next_cached : next_cached + size]
                next_cached += size
            else:
                ids += new[next_new : next_new + size]
                next_new += size
        return ids

    def take_one(self, table: BlockTable) -> None:
        """Take the block of the next position, where a decoding request crosses a block boundary."""
        if not table.ids:
            table.free_at = self.computed_when_unneeded(table.first_held)
        table.num_slots += self.block_size
        self.tally.num_positions += 1
        table.ids += self.pool.take(self.num_groups, table.ids)

    def free_unneeded(self, table: BlockTable, num_processed: int) -> None:
        """Give back the blocks before every later query's reach, once `num_processed` tokens are settled."""
        first = table.first_held
        end = min(self.first_needed_token(num_processed), table.num_slots) // self.block_size
        if end <= first:
            return
        if end == first + 1:  # a decode's common case
            self._release_first(table)
        else:
            self._release(table, end)
        del table.ids[: (end - first) * self.num_groups]
        self.tally.num_positions -= end - first
        self.tally.num_given_back += end - first
        table.first_held = end
        table.free_at = self.computed_when_unneeded(end) if table.ids else NEVER

    def _release_first(self, table: BlockTable) -> None:
        """Give back the first block that is held, of each group."""
        first, blocks = table.first_held, table.ids[: self.num_groups]
        ranges = table.hashed
        while ranges and ranges[0][1] <= first:
            del ranges[0]
        if ranges and ranges[0][0] <= first:
            keys = self.held_keys(table, first, first + 1)
            self._put_hashed(keys, blocks, self.anchors(table, first, first + 1, keys))
        else:
            self.pool.put_unhashed(blocks)

    def free(self, table: BlockTable, num_tokens: int) -> None:
        """Give back all blocks, so that the beginning of the request is reused last. The table is empty again.

        What the first `num_tokens` fill can be hit from then on, as far as it is worth caching.
        """
        if table.ids:
            self._release(table, table.num_slots // self.block_size)
        self.tally.num_positions -= len(table.ids) // self.num_groups
        self.tally.num_given_back -= table.first_held
        table.ids = []
        table.hashed = []
        table.first_held = table.num_slots = table.num_cached = 0
        table.free_at = NEVER

    def _release(self, table: BlockTable, end: int) -> None:
        """Give back the blocks before position `end`, the last first, one group after the other."""
        first, num_groups, ids = table.first_held, self.num_groups, table.ids
        hashed, unhashed = table.split(first, end)
        for nth in range(num_groups):
            for start, stop in unhashed:
                blocks = ids[(start - first) * num_groups + nth : (stop - first) * num_groups : num_groups]
                self.pool.put_unhashed(blocks)
        if not hashed:
            return
        keys_back: list[int] = []
        blocks_back: list[int] = []
        anchors_back: list[int] = []
        for start, stop in reversed(hashed):
            keys = self.held_keys(table, start, stop)
            keys_back += keys[::-1]
            anchors_back += self.anchors(table, start, stop, keys)[::-1]
        for nth in range(num_groups):
            for start, stop in reversed(hashed):
                blocks = ids[(start - first) * num_groups + nth : (stop - first) * num_groups : num_groups]
                blocks_back += blocks[::-1]
        self._put_hashed(keys_back, blocks_back, anchors_back)

    def _put_hashed(self, keys: list[int], blocks: list[int], anchors: list[int]) -> None:
        """Give hashed blocks back, those of each group after those of the one before, beside keys for one group."""
        if not self.is_first_alone:
            keys = [key + offset for offset in self.key_offsets for key in keys]
        self.pool.put_hashed(keys, blocks, self.tally, anchors)

    def held_keys(self, table: BlockTable, start: int, stop: int) -> list[int]:
        """The keys under which the blocks at positions `start` to `stop` are found once they are hashed."""
        return self.block_keys(table.keys.first(stop * self.units_per_block), start, stop)

    def anchors(self, table: BlockTable, start: int, stop: int, keys: list[int]) -> list[int]:
        """For each position, whose keys are `keys`, full attention's key that a hit needs which uses the block.

        Its block ends with the shortest such hit. None if the blocks can be hit on their own.
        """
        if not self.is_anchored:
            return []
        alignment = self.policy.alignment
        if alignment == self.block_size:
            return keys
        positions, units = alignment // self.block_size, alignment // self.policy.hash_unit
        of_units = table.keys.first(cdiv(stop, positions) * units)
        return [of_units[(position // positions + 1) * units - 1] for position in range(start, stop)]

    def cache(self, table: BlockTable, num_tokens: int, junction: int) -> None:
        """Hash the full blocks among the first `num_tokens` that may be hit later.

        The same prompt would resume before its last token; `junction` (or 0) is where requests were seen to part.
        """
        start, end = table.num_cached, num_tokens // self.block_size
        if end <= start:
            return
        boundaries = (table.prompt_tokens - 1, junction) if junction else (table.prompt_tokens - 1,)
        kept = ((start, end),) if self.policy.caches_every_block else self.retained(start, end, boundaries)
        for first, stop in kept:
            first = max(first, table.first_held)  # noqa: PLW2901  what left the window is gone
            if first < stop:
                self._hash(table, first, stop)
        table.num_cached = end

    def _hash(self, table: BlockTable, start: int, stop: int) -> None:
        keys = self.held_keys(table, start, stop)
        num_groups, offset = self.num_groups, (start - table.first_held) * self.num_groups
        ids = table.ids[offset : offset + (stop - start) * num_groups]
        self.pool.hash_blocks(self.group_keys(keys), ids, not self.is_anchored)
        table.mark_hashed(start, stop)

    # Time.

    def next_to_cache(self, table: BlockTable, junction: int) -> int:
        """Tokens that must be computed before `cache` has something to do again, or NEVER."""
        return (table.num_cached + 1) * self.block_size

    def may_take_hit(self, keys: list[int], hit_tokens: int) -> bool:
        """Whether the blocks of a hit can be read in this very step."""
        return True

    def new_step(self) -> None:
        """A new step is being planned."""

    # Looking in.

    def places(self, table: BlockTable) -> Iterator[tuple[int | None, int]]:
        """(key or None, block) of every place that holds a block."""
        end = table.first_held + len(table.ids) // self.num_groups
        hashed, _ = table.split(table.first_held, end)
        keys: dict[int, int] = {}
        for start, stop in hashed:
            keys.update(zip(range(start, stop), self.held_keys(table, start, stop), strict=True))
        for index, block in enumerate(table.ids):
            position, nth = divmod(index, self.num_groups)
            key = keys.get(table.first_held + position)
            yield None if key is None else key + self.key_offsets[nth], block
