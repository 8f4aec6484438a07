"""Two levels of pages, in the manner of Jenga (SOSP 2025): blocks of each attention type in a size of their own.

```
large pages   | 0: null | 1: full          | 2: sliding | 3: empty  |
small pages             | held | held | free | held | cached |
```

A large page is as long as the least common multiple of all types' blocks. It belongs to one type, whose
small pages are that type's blocks, until all of them are free. A block is looked for in this order:

# 1  free in a large page in which the request has blocks already
# 2  in an empty large page
# 3  in the large page that was given back longest ago, whose cached blocks are evicted
# 4  free in a large page of another request
# 5  cached in a large page of another request, the one in which something has been cached longest

For 4 and 5 each type has a queue of the large pages that may have one. A page is put there when that becomes so
and looked at again when its turn comes, so that no search goes over the whole pool.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from kvcache.block_pool import NO_ANCHORS, NO_BLOCKS, BlockPool, Place
from kvcache.errors import InvariantError
from kvcache.key_journal import KeyJournal
from kvcache.specs import cdiv
from kvcache.tally import Tally

__all__ = ["SmallPages", "TwoLevelPool"]


class LargePages:
    """Which large pages are empty, whose the others are, and in which of them nobody holds a block."""

    def __init__(self, num_pages: int) -> None:
        self.empty = list(range(num_pages - 1, 0, -1))
        self.num_held = [0] * num_pages
        """Blocks in each that somebody holds."""
        self.owner: dict[int, SmallPages] = {}
        self.evictable: dict[int, None] = {}
        """Those with cached blocks only, in the order in which they were given back."""

    @property
    def num_free(self) -> int:
        """Large pages that any type can have."""
        return len(self.empty) + len(self.evictable)

    def hold(self, page: int) -> None:
        """Somebody holds one more of its blocks."""
        self.num_held[page] += 1
        if self.num_held[page] == 1 and page in self.evictable:
            del self.evictable[page]
            self.owner[page].num_evictable -= 1
            self.owner[page].offer(page)

    def let_go(self, page: int) -> None:
        """Somebody holds one less of its blocks."""
        self.num_held[page] -= 1
        owner = self.owner[page]
        if self.num_held[page]:
            owner.offer(page)
        elif owner.has_cached_in(page):
            self.evictable[page] = None
            owner.num_evictable += 1
        else:
            self._take_back(page)

    def _take_back(self, page: int) -> None:
        self.owner.pop(page).withdraw(page)
        self.empty.append(page)

    def grant(self, owner: "SmallPages") -> int:
        """Give an attention type a large page, evicting what is cached in the oldest if none is empty."""
        if not self.empty:
            oldest = next(iter(self.evictable))
            del self.evictable[oldest]
            self.owner[oldest].num_evictable -= 1
            self._take_back(oldest)
        page = self.empty.pop()
        self.owner[page] = owner
        return page


class SmallPages(BlockPool):
    """The blocks of one attention type. The block `i` is in the large page `i // pages_per_large`."""

    def __init__(self, large: LargePages, pages_per_large: int, block_of: dict[int, int]) -> None:
        super().__init__(len(large.num_held) * pages_per_large)
        self.keeps_beginnings = False  # a large page can be empty of holders before those with later blocks are
        self.block_of = block_of
        self.pages_per_large = pages_per_large
        self.num_evictable = 0
        """Its large pages in which nobody holds a block."""
        self.num_granted_at_most = 0
        """Large pages that the next call to take may ask for: others were promised some."""
        self._large = large
        self._unhashed.clear()
        self._free_in: dict[int, list[int]] = {}
        """By large page, its free blocks without a hash."""
        self._num_unhashed = 0
        self._index_in_run = [0] * self.num_blocks
        """Of each free hashed block, its place in its run."""
        self._with_free: deque[int] = deque()
        self._with_cached: deque[int] = deque()
        """Large pages that may have a free block without, or with a hash, beside held ones; in order of their turn."""
        self._in_with_free: set[int] = set()
        self._in_with_cached: set[int] = set()

    def offer(self, page: int) -> None:
        """A large page of which somebody holds a block may have free ones, too."""
        if page not in self._in_with_free:
            self._in_with_free.add(page)
            self._with_free.append(page)
        if page not in self._in_with_cached:
            self._in_with_cached.add(page)
            self._with_cached.append(page)

    @property
    def num_free(self) -> int:
        """Free blocks in its large pages, those that other types can have included."""
        return self._num_unhashed + self._num_queued

    @property
    def num_unhashed_beside_held(self) -> int:
        """Free blocks without a hash in large pages of which somebody holds a block."""
        return sum([len(blocks) for page, blocks in self._free_in.items() if self._large.num_held[page]])

    @property
    def num_free_beside_held(self) -> int:
        """Free blocks that no other type can have, because somebody holds another in their large page."""
        return self.num_free - self.num_evictable * self.pages_per_large

    def has_cached_in(self, page: int) -> bool:
        """Whether a block of its large page, of which nobody holds any, can be hit."""
        return len(self._free_in[page]) < self.pages_per_large

    # Taking and giving back.

    def take(self, num_blocks: int, beside: list[int] = NO_BLOCKS) -> list[int]:
        """So many free blocks, near those that the request holds already."""
        near = [block // self.pages_per_large for block in (*beside[-1:], *beside[:1])]
        taken = [self._take_one(near) for _ in range(num_blocks)]
        self.num_granted_at_most = 0
        return taken

    def _take_one(self, near: list[int]) -> int:
        while near and not self._free_in.get(near[0]):
            del near[0]
        page = near[0] if near else None
        if page is None and self.num_granted_at_most:
            self.num_granted_at_most -= 1
            page = self._grant()
            near.insert(0, page)
        if page is None:
            page = self._next_with_free()
        if page is None:
            block = self._evict_beside_held()
            self._large.hold(block // self.pages_per_large)
            return block
        self._large.hold(page)
        self._num_unhashed -= 1
        return self._free_in[page].pop()

    def _grant(self) -> int:
        page = self._large.grant(self)
        self._free_in[page] = list(reversed(self._blocks_of(page)))
        self._num_unhashed += self.pages_per_large
        self.offer(page)
        return page

    def _next_with_free(self) -> int | None:
        """The large page whose turn it is to give a free block without a hash, beside held ones."""
        while self._with_free:
            page = self._with_free[0]
            if self._free_in.get(page) and self._large.num_held[page]:
                return page
            self._with_free.popleft()
            self._in_with_free.discard(page)
        return None

    def _evict_beside_held(self) -> int:
        """Evict a cached block that no other type can have."""
        while self._with_cached:
            page = self._with_cached[0]
            if page in self._free_in and self._large.num_held[page]:
                for block in reversed(self._blocks_of(page)):  # a request's last tokens first
                    if self._run_of[block] is not None:
                        self._evict_this(block)
                        return block
            self._with_cached.popleft()
            self._in_with_cached.discard(page)
        raise InvariantError("no-overdraft: a block is asked for where none is free")

    def withdraw(self, page: int) -> None:
        """A large page of which nobody holds a block is its own no more: what is cached there is evicted."""
        free = self._free_in.pop(page)
        self._num_unhashed -= len(free)
        if len(free) < self.pages_per_large:
            for block in self._blocks_of(page):
                if self._run_of[block] is not None:
                    self._evict_this(block)

    def _evict_this(self, block: int) -> None:
        run = self._run_of[block]
        assert run is not None
        index = self._index_in_run[block]
        if run.num_lost:
            run.tally.num_unreachable -= run.num_lost_among(range(index, index + 1))
        self._run_of[block] = None
        run.is_whole = False
        run.tally.num_cached -= 1
        self._num_queued -= 1
        self._num_evictions += 1
        self._forget([run.keys[index]], [block], is_anchor=not run.anchors)

    def put_unhashed(self, blocks: list[int]) -> None:
        """Give back blocks without a hash."""
        self._num_unhashed += len(blocks)
        for block in blocks:
            page = block // self.pages_per_large
            self._free_in[page].append(block)
            self._large.let_go(page)

    def put_hashed(self, keys: list[int], blocks: list[int], tally: Tally, anchors: list[int] = NO_ANCHORS) -> None:
        """Drop one holder of each block; those without any left queue up in this order, beside their keys."""
        super().put_hashed(keys, blocks, tally, anchors)
        if self._queue:
            for index, block in enumerate(self._queue[-1].blocks):
                self._index_in_run[block] = index
            self._drop_ended_runs()
        for block in blocks:
            if self._run_of[block] is not None:
                self._large.let_go(block // self.pages_per_large)

    def _drop_ended_runs(self) -> None:
        """Runs at the head of the queue of which no block is free any more."""
        while self._queue:
            run = self._queue[0]
            while run.next < len(run.blocks) and self._run_of[run.blocks[run.next]] is not run:
                run.next += 1
            if run.next < len(run.blocks):
                return
            self._queue.popleft()
            if run.anchors:
                run.tally.leave(run)

    def touch(self, blocks: list[int], tally: Tally) -> None:
        """Add a holder to each hashed block; free ones leave the queue."""
        for block in blocks:
            if self._run_of[block] is not None:
                self._large.hold(block // self.pages_per_large)
        super().touch(blocks, tally)

    # Looking in.

    def check_type(self, places: Sequence[Place]) -> None:
        """Raise InvariantError if its blocks, holders and keys contradict each other (`BlockPool.check_integrity`)."""
        unhashed = [block for blocks in self._free_in.values() for block in blocks]
        queued = self._queued()
        held = {block for _, block in places}
        mine = [page for page, owner in self._large.owner.items() if owner is self]
        all_blocks = {block for page in mine for block in self._blocks_of(page)}
        self._check_conservation(unhashed, queued, held, all_blocks)
        self._check_holders(places)
        for page in mine:
            num_held = len(held.intersection(self._blocks_of(page)))
            if num_held != self._large.num_held[page] or (not num_held) != (page in self._large.evictable):
                raise InvariantError("conservation: the count of held blocks in a large page is wrong")

    def hashed(self) -> tuple[Sequence[Place], dict[int, list[int]]]:
        """(key and block of what can be hit and nobody holds, equal copies by key)."""
        return self._queued(), self._copies

    def _blocks_of(self, page: int) -> range:
        return range(page * self.pages_per_large, (page + 1) * self.pages_per_large)


class TwoLevelPool(BlockPool):
    """`num_blocks` large pages, the first of them for the null block, and the small pages of each attention type."""

    def __init__(self, num_blocks: int, pages_per_large: Sequence[int]) -> None:
        """`pages_per_large`: for each attention type, how many of its blocks fit into a large page."""
        super().__init__(num_blocks)
        self.is_uniform = False
        self._large = LargePages(num_blocks)
        self._types = [SmallPages(self._large, number, self.block_of) for number in pages_per_large]

    def of_type(self, nth: int) -> SmallPages:
        """Where one attention type takes its blocks."""
        return self._types[nth]

    def add_journal(self, journal: KeyJournal) -> None:
        """Note there, from now on, which keys of any type begin or cease to find a block."""
        for each in self._types:
            each.add_journal(journal)

    @property
    def num_free(self) -> int:
        """Large pages of which nobody holds a block."""
        return self._large.num_free

    @property
    def num_cached_free(self) -> int:
        """Those of them in which something can still be hit."""
        return len(self._large.evictable)

    @property
    def num_evictions(self) -> int:
        """Small pages whose hash was lost."""
        return sum([each.num_evictions for each in self._types])

    @property
    def num_shared_hashings(self) -> int:
        """How often blocks were hashed that more than one request may hit."""
        return sum([each.num_shared_hashings for each in self._types])

    def has_room(self, needs: Sequence[int], hits: Sequence[list[int]], keep: int = 0) -> bool:
        """Whether each type can take what it needs beside the blocks of a hit; if so, its large pages are promised."""
        num_free = self._large.num_free - keep
        wanted: list[int] = []
        for nth, (each, needed) in enumerate(zip(self._types, needs, strict=True)):
            size, hit = each.pages_per_large, hits[nth] if hits else NO_BLOCKS
            opened = {block // size for block in hit} & self._large.evictable.keys()
            num_free -= len(opened)
            left = each.num_free_beside_held + len(opened) * size - each.num_free_among(hit)
            wanted.append(cdiv(max(0, needed - left), size))
        spare = num_free - sum(wanted)
        if spare < 0:
            return False
        for each, number in zip(self._types, wanted, strict=True):
            each.num_granted_at_most = number
        for each, needed in zip(self._types, needs, strict=True):  # who comes first gets what is to spare
            more = min(spare, cdiv(needed, each.pages_per_large) - each.num_granted_at_most)
            each.num_granted_at_most += more
            spare -= more
        return True

    def free_bytes(self, block_bytes: int) -> tuple[int, int]:
        """(bytes that any type can have, bytes that only one type can have) of free blocks without a hash."""
        unused = free = 0
        for each in self._types:
            page_bytes = block_bytes // each.pages_per_large
            beside_held = each.num_unhashed_beside_held
            unused += beside_held * page_bytes
            free += (each.num_free - each.num_cached_free - beside_held) * page_bytes
        return free + len(self._large.empty) * block_bytes, unused

    def check_integrity(self, places: Iterable[Sequence[Place]]) -> None:
        """Raise InvariantError if a type contradicts itself, or the large pages do not add up."""
        by_type = list(places)
        for each, of_type in zip(self._types, by_type, strict=True):
            each.check_type(of_type)
        large = self._large
        if sorted([*large.empty, *large.owner]) != list(range(1, self.num_blocks)):
            raise InvariantError("conservation: a large page is lost, or both empty and owned")
        queues, copies = zip(*(each.hashed() for each in self._types), strict=True)
        self._check_hashes(queues, by_type, copies)
