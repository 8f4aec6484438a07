"""The block pool: which blocks are free, in what order they are reused, and which key finds which block.

```
reused next                                                        reused last
 [ stack of unhashed blocks, last freed first ][ queue of hashed blocks, LRU ]
```

A block without a hash holds nothing that anyone could want again, so it goes back on top of the
stack; a hashed one goes to the end of the queue and can be hit until its turn comes. (The design
document sent both to the end; vLLM 0.32 does not.)

Block ids are plain ints, taken and given back by the list. A key stands for (group, prefix): the same
tokens have another key in each group. The queue holds runs: blocks that were given back together,
beside their keys. Nothing is ever taken out of its middle: a block that is hit forgets its run, and
the run passes over it when its turn comes.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from kvcache.errors import InvariantError
from kvcache.key_journal import KeyJournal
from kvcache.tally import Run, Tally

__all__ = ["NO_ANCHORS", "NO_BLOCKS", "NULL_BLOCK", "BlockPool", "Place"]

NULL_BLOCK = 0
"""Stands in block tables for positions that are no longer needed. Never free, never hashed."""
NO_ANCHORS: list[int] = []
NO_BLOCKS: list[int] = []

Place = tuple[int | None, int]
"""(key or None, block): a place of a block table that holds a block."""


class BlockPool:
    """`num_blocks` blocks, one of them the null block, and a map from key to block.

    What moves is counted by attention type: a caller passes the `Tally` of its own.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least the null block, got {num_blocks} blocks")
        self.num_blocks = num_blocks
        self.is_uniform = True
        """All attention types take the same blocks, so that it is only their sum that counts."""
        self.keeps_beginnings = True
        """Of what was given back together the end is reused first: a cached block has its whole prefix cached."""
        self.block_of: dict[int, int] = {}
        """Key to block: what can be hit. Of equal copies the one that was hashed first."""
        self._num_evictions = 0
        self._num_shared_hashings = 0
        self._unhashed = list(range(num_blocks - 1, 0, -1))
        self._queue: deque[Run] = deque()
        self._num_queued = 0
        self._run_of: list[Run | None] = [None] * num_blocks
        """The run in which a block is free; None while it is held or unhashed."""
        self._more_holders = [0] * num_blocks
        """Holders of each block beside the first."""
        self._num_shared = 0
        """Blocks that have several."""
        self._copies: dict[int, list[int]] = {}
        """All blocks of a key that was hashed more than once, the first first."""
        self._anchored: list[Tally] = []
        """Of the attention types whose blocks can be hit only together with full attention's."""
        self._journals: list[KeyJournal] = []
        """Of those who keep a copy of the map."""

    def of_type(self, nth: int) -> "BlockPool":
        """Where one attention type takes its blocks."""
        return self

    def anchor(self, tally: Tally, pool: "BlockPool") -> None:
        """Note when blocks of another attention type, which are in `pool`, become unreachable."""
        tally.run_of = pool._run_of  # noqa: SLF001  its own class's
        self._anchored.append(tally)

    def add_journal(self, journal: KeyJournal) -> None:
        """Note there, from now on, which keys begin or cease to find a block."""
        self._journals.append(journal)

    @property
    def num_evictions(self) -> int:
        """Blocks whose hash was lost."""
        return self._num_evictions

    @property
    def num_shared_hashings(self) -> int:
        """How often blocks were hashed that more than one request may hit: until the next time, hits only shrink."""
        return self._num_shared_hashings

    @property
    def num_free(self) -> int:
        """Blocks that can be taken: unhashed ones, and hashed ones that nobody holds."""
        return len(self._unhashed) + self._num_queued

    @property
    def num_cached_free(self) -> int:
        """Free blocks that can still be hit."""
        return self._num_queued

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1; cached blocks that nobody holds count as free."""
        usable = self.num_blocks - 1
        return 1.0 - self.num_free / usable if usable else 0.0

    # Taking.

    def has_room(self, needs: Sequence[int], hits: Sequence[list[int]], keep: int = 0) -> bool:
        """Whether each attention type can take what it needs beside the blocks of a hit, with `keep` left free."""
        return sum(needs) + sum(map(self.num_free_among, hits)) + keep <= self.num_free

    def take(self, num_blocks: int, beside: list[int] = NO_BLOCKS) -> list[int]:
        """The next `num_blocks` free blocks in the order of reuse; hashed ones lose their hash.

        `beside`: those that the request holds already, which make no difference here.
        """
        unhashed = self._unhashed
        if not num_blocks:
            return []
        if len(unhashed) >= num_blocks:
            taken = unhashed[-num_blocks:]
            del unhashed[-num_blocks:]
            taken.reverse()
            return taken
        taken = unhashed[::-1]
        unhashed.clear()
        self._evict(num_blocks - len(taken), taken)
        return taken

    def _evict(self, num_blocks: int, taken: list[int]) -> None:
        """Append the next `num_blocks` of the queue to `taken`."""
        if num_blocks > self._num_queued:
            raise InvariantError(f"no-overdraft: {num_blocks} blocks asked of a queue of {self._num_queued}")
        self._num_queued -= num_blocks
        while num_blocks:
            run = self._queue[0]
            keys, blocks = self._whole_part(run, num_blocks) if run.is_whole else self._rest_of(run, num_blocks)
            if run.next == len(run.blocks):
                self._queue.popleft()
                if run.anchors:
                    run.tally.leave(run)
            if blocks:
                run.tally.num_cached -= len(blocks)
                self._num_evictions += len(keys)
                self._forget(keys, blocks, is_anchor=not run.anchors)
                taken += blocks
                num_blocks -= len(blocks)

    def _whole_part(self, run: Run, num_blocks: int) -> tuple[list[int], list[int]]:
        """Keys and blocks of the next `num_blocks` of a run, or all it has; they are in it no more."""
        start, stop = run.next, run.next + num_blocks
        blocks = run.blocks[start:stop]
        run.next = start + len(blocks)
        run_of = self._run_of
        for block in blocks:
            run_of[block] = None
        if run.num_lost:
            run.tally.num_unreachable -= run.num_lost_among(range(start, start + len(blocks)))
        return run.keys[start:stop], blocks

    def _rest_of(self, run: Run, num_blocks: int) -> tuple[list[int], list[int]]:
        """The same for a run out of which blocks have been hit: these are passed over."""
        keys: list[int] = []
        blocks: list[int] = []
        run_of = self._run_of
        index, end = run.next, len(run.blocks)
        while index < end and len(blocks) < num_blocks:
            block = run.blocks[index]
            if run_of[block] is run:
                run_of[block] = None
                blocks.append(block)
                keys.append(run.keys[index])
                if run.num_lost:
                    run.tally.num_unreachable -= run.num_lost_among(range(index, index + 1))
            index += 1
        run.next = index
        return keys, blocks

    def _forget(self, keys: list[int], blocks: list[int], is_anchor: bool) -> None:
        """Take blocks out of the map; what is anchored to keys that are gone then is unreachable."""
        block_of, copies = self.block_of, self._copies
        self.tell_copies(keys)
        if not copies or copies.keys().isdisjoint(keys):
            for key in keys:
                del block_of[key]
            if is_anchor:
                for tally in self._anchored:
                    tally.lose(keys)
            return
        for key, block in zip(keys, blocks, strict=True):
            others = copies.get(key)
            if others is None:
                del block_of[key]
                if is_anchor:
                    for tally in self._anchored:
                        tally.lose([key])
                continue
            others.remove(block)
            block_of[key] = others[0]
            if len(others) == 1:
                del copies[key]

    # Giving back.

    def put_unhashed(self, blocks: list[int]) -> None:
        """Give back blocks without a hash; the last of them is reused first."""
        self._unhashed += blocks

    def put_hashed(self, keys: list[int], blocks: list[int], tally: Tally, anchors: list[int] = NO_ANCHORS) -> None:
        """Drop one holder of each block; those without any left queue up in this order, beside their keys.

        The blocks of each group come after those of the group before it. `anchors` are the keys of full
        attention that each position needs, or none.
        """
        if self._num_shared and any(map(self._more_holders.__getitem__, blocks)):
            keys, blocks, anchors = self._drop_holders(keys, blocks, tally, anchors)
        if not blocks:
            return
        run = Run(keys, blocks, tally, anchors)
        run_of = self._run_of
        for block in blocks:
            run_of[block] = run
        tally.num_cached += len(blocks)
        if anchors:
            tally.enter(run)
        self._queue.append(run)
        self._num_queued += len(blocks)

    def _drop_holders(
        self, keys: list[int], blocks: list[int], tally: Tally, anchors: list[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Keys and blocks of those that nobody holds any more, after each lost a holder; an anchor for each."""
        more = self._more_holders
        per_group = len(blocks) // tally.num_groups
        free: list[int] = []
        for index, block in enumerate(blocks):
            num_more = more[block]
            if num_more:
                more[block] = num_more - 1
                self._num_shared -= num_more == 1
                tally.extra_holders[index // per_group] -= 1
            else:
                free.append(index)
        if anchors:
            positions = free[: len(free) // tally.num_groups]
            if free == [start + position for start in range(0, len(blocks), per_group) for position in positions]:
                anchors = [anchors[position] for position in positions]
            else:  # a group lost others than the first did
                anchors = [anchors[index % per_group] for index in free]
        return [keys[index] for index in free], [blocks[index] for index in free], anchors

    # Prefixes.

    def hash_blocks(self, keys: list[int], blocks: list[int], is_anchor: bool = False) -> None:
        """Let each key find its block from now on; where it found one already, the new one is a copy.

        `is_anchor` are keys of full attention, which blocks of other types may need to be hit.
        """
        block_of = self.block_of
        self.tell_copies(keys)
        if keys[0] >= 0:
            self._num_shared_hashings += 1
        if is_anchor:
            for tally in self._anchored:
                tally.find(keys, block_of)
        if block_of.keys().isdisjoint(keys):
            block_of.update(zip(keys, blocks, strict=True))
            return
        copies = self._copies
        for key, block in zip(keys, blocks, strict=True):
            first = block_of.setdefault(key, block)
            if first != block:
                copies.setdefault(key, [first]).append(block)

    def tell_copies(self, keys: list[int]) -> None:
        """What these keys find changes: tell those who keep a copy."""
        for journal in self._journals:
            journal.note(keys)

    def touch(self, blocks: list[int], tally: Tally) -> None:
        """Add a holder to each hashed block; free ones leave the queue.

        The blocks of all groups at one position come before those of the next.
        """
        run_of, more = self._run_of, self._more_holders
        num_taken = 0
        for index, block in enumerate(blocks):
            run = run_of[block]
            if run is None:
                num_more = more[block]
                more[block] = num_more + 1
                self._num_shared += not num_more
                tally.extra_holders[index % tally.num_groups] += 1
            else:
                run_of[block] = None
                run.is_whole = False
                num_taken += 1
                if run.num_lost:  # hit by a request that parts from the one that gave it back
                    nth = run.blocks.index(block)
                    tally.num_unreachable -= run.num_lost_among(range(nth, nth + 1))
        self._num_queued -= num_taken
        tally.num_cached -= num_taken

    def num_free_among(self, blocks: list[int]) -> int:
        """How many of these hashed blocks nobody holds."""
        run_of = self._run_of
        return len([None for block in blocks if run_of[block] is not None])

    def shared_among(self, blocks: list[int]) -> list[int]:
        """Which of these held blocks, by their place in the list, have several holders."""
        more = self._more_holders
        if not any(map(more.__getitem__, blocks)):
            return []
        return [index for index, block in enumerate(blocks) if more[block]]

    # Looking in.

    def free_bytes(self, block_bytes: int) -> tuple[int, int]:
        """(bytes that any attention type can have, bytes that only one can have) of free blocks without a hash."""
        return (self.num_free - self.num_cached_free) * block_bytes, 0

    def check_integrity(self, places: Iterable[Sequence[Place]]) -> None:
        """Raise InvariantError if the pool contradicts itself or the block tables.

        `places` has those of each attention type.

        conservation: every block but the null block is either free or held.
        reference-counts: a block has as many holders as there are places that name it.
        live-hashes: the map names exactly the hashed blocks, each under its own key.
        """
        held = [place for of_type in places for place in of_type]
        queued = self._queued()
        all_blocks = set(range(1, self.num_blocks))
        self._check_conservation(self._free_unhashed(), queued, {block for _, block in held}, all_blocks)
        self._check_holders(held)
        self._check_hashes([queued], [held], [self._copies])

    def _free_unhashed(self) -> list[int]:
        """All free blocks without a hash."""
        return self._unhashed

    def _check_conservation(
        self, unhashed: Sequence[int], queued: Sequence[Place], held: set[int], all_blocks: set[int]
    ) -> None:
        free = [*unhashed, *(block for _, block in queued)]
        if len(queued) != self.num_cached_free or len(free) != self.num_free or len(set(free)) != len(free):
            raise InvariantError("conservation: a block is free twice, or the count of free blocks is wrong")
        if set(free) | held != all_blocks or set(free) & held:
            raise InvariantError("conservation: a block is lost, or both free and held")

    def _check_holders(self, places: Sequence[Place]) -> None:
        held = Counter(block for _, block in places)
        more = {block: num_more for block, num_more in enumerate(self._more_holders) if num_more}
        if {block: count - 1 for block, count in held.items() if count > 1} != more or len(more) != self._num_shared:
            raise InvariantError("reference-counts: holders and block tables differ")
        if any(key is None and block in more for key, block in places):
            raise InvariantError("reference-counts: a block without a hash has several holders")

    def _check_hashes(
        self,
        queues: Sequence[Sequence[Place]],
        places: Sequence[Sequence[Place]],
        copies: Sequence[dict[int, list[int]]],
    ) -> None:
        """Against the free and the held hashed blocks of each attention type, and their equal copies."""
        several = {key: blocks for of_type in copies for key, blocks in of_type.items()}
        hashed = {place for queue in queues for place in queue}
        hashed |= {place for of_type in places for place in of_type if place[0] is not None}
        if {*self.block_of.items(), *((key, block) for key, blocks in several.items() for block in blocks)} != hashed:
            raise InvariantError("live-hashes: the map and the hashed blocks differ")
        if any(self.block_of.get(key) != blocks[0] for key, blocks in several.items()):
            raise InvariantError("live-hashes: a key does not find the first of its copies")

    def _queued(self) -> list[Place]:
        """(key, block) of all free hashed blocks, in the order of reuse."""
        return [
            (key, block)
            for run in self._queue
            if run.keys
            for key, block in list(zip(run.keys, run.blocks, strict=True))[run.next :]
            if self._run_of[block] is run
        ]
