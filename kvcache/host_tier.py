"""A second tier of the prefix cache, in the host's memory: what the device evicts, the least recently used out first.

```
 device  [ blocks in use | cached, free ] ── evicted ──► writer ──► host  [ LRU ......... | pinned ]
                        ▲                                                         │
                        └────────────── blocks of a load are filled ◄─────────────┘
```

It knows no clock: whoever moves the bytes says when a copy begins and when it is there. What it holds are positions:
what one attention type keeps of one block's tokens, in all of its groups. A position leaves the device whole, with
the first of its blocks to be evicted, and leaves the host whole: half of one is of no use to anybody.

What was fetched back stays, for a second eviction then costs no copy. What only its own request could ever ask for
again is kept like everything else: a server cannot tell, and its device's cache keeps it too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvcache.block_pool import BlockPool
from kvcache.errors import InvariantError, KVCacheError
from kvcache.hashing import PrefixKeys
from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings, KVCacheManager
from kvcache.pool_kinds import ONE_SIZE
from kvcache.specs import cdiv

__all__ = ["Fetch", "HostTier", "Resumable", "TieredPool", "Writer"]


class Writer(Protocol):
    """Who copies from the device to the host."""

    def evicted(self, positions: list[int]) -> None:
        """The blocks of these positions, of one type, are about to be reused: `begin_write` them now, or they are lost.

        They are in the order of reuse: ends come before beginnings.
        """


class Fetch(NamedTuple):
    """A beginning of a request from which it could resume, and what is missing on the device for it."""

    num_tokens: int
    num_bytes: int
    """To be copied from the host."""


class Resumable(NamedTuple):
    """Where a request could go on, both tiers together."""

    fetches: list[Fetch]
    """The shortest beginning first; none is shorter than what the device has."""
    junction: int
    """Tokens after which other requests were seen to part from this one, if that is beyond all of them; or 0."""


class TieredPool(BlockPool):
    """A device's pool that tells its host tier what can be hit from now on, and what is about to be lost."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.tier: HostTier | None = None

    def hash_blocks(self, keys: list[int], blocks: list[int], is_anchor: bool = False) -> None:
        """Let each key find its block from now on."""
        super().hash_blocks(keys, blocks, is_anchor)
        if self.tier is not None:
            self.tier.hashed(keys)

    def _forget(self, keys: list[int], blocks: list[int], is_anchor: bool) -> None:
        tier, copies = self.tier, self._copies
        lost = [key for key in keys if key not in copies] if copies else keys
        if tier is not None and lost:
            tier.leaving(lost)
        super()._forget(keys, blocks, is_anchor)
        if tier is not None and lost:
            tier.left(lost)


class HostTier:
    """What the host holds of one replica's evicted positions; each is named by the key of its first group's block."""

    def __init__(
        self, layout: KVCacheLayout, settings: CacheSettings, capacity_bytes: int, writer: Writer, num_ranks: int = 1
    ) -> None:
        """`capacity_bytes` are those of all `num_ranks` ranks that share each layer, as is what a position takes.

        Raises KVCacheError where nothing is ever cached, or the pool is not vLLM's.
        """
        if layout.pool_kind != ONE_SIZE:
            raise KVCacheError("--kv-offloading-size: knows vLLM's pool only, not that of this grouping or semantics")
        if not settings.enable_prefix_caching:
            raise KVCacheError("--kv-offloading-size: needs prefix caching, which is off: nothing would be found again")
        pool = TieredPool(layout.num_blocks)
        pool.tier = self
        self.manager = KVCacheManager(layout, settings, pool)
        """The device's."""
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.num_evicted_blocks = 0
        """That the host had, and gave up for others."""
        self.num_changes = 0
        """How often something came to the host or left it for good."""
        self._writer = writer
        self._on_device = pool.block_of
        self._lru: OrderedDict[int, None] = OrderedDict()
        """Positions that are here and nobody is reading, the least recently used first."""
        self._pins: dict[int, int] = {}
        """Positions that are being read, and by how many."""
        self._writing: set[int] = set()
        """Positions that are on their way here."""
        self._busy_bytes = 0
        """Of pinned positions and those on their way."""
        self._offsets: list[list[int]] = [[]] * self.manager.key_stride
        """For each number within the keys' stride, those of its attention type: one for each group."""
        self._bytes = [0] * self.manager.key_stride
        """And the bytes of one position of that type."""
        for manager in self.manager.managers:
            num_bytes = num_ranks * sum(layout.groups[group].bytes_per_block for group in manager.groups)
            for offset in manager.key_offsets:
                self._offsets[offset], self._bytes[offset] = manager.key_offsets, num_bytes
        # The same rules over another map say what can be resumed from both tiers together.
        self.prefixes = KVCacheManager(layout, settings, BlockPool(1))
        """Knows the keys of both tiers, and no blocks."""
        self._found: dict[int, int] = {}
        self.prefixes.pool.block_of = self._found
        self.prefixes.pool.keeps_beginnings = False  # the middle of a prefix may have been too much for the writer
        for manager in self.prefixes.managers:
            manager.block_of = self._found

    def bytes_of(self, position: int) -> int:
        """What a position takes, on all ranks."""
        return self._bytes[position % self.manager.key_stride]

    def num_blocks(self, position: int) -> int:
        """Blocks of a position, one for each group of its type."""
        return len(self._offsets[position % self.manager.key_stride])

    def holds(self, position: int) -> bool:
        """Whether it is here, and not only on its way."""
        return position in self._lru or position in self._pins

    # Leaving the device: what its pool says. Keys that come together are of one attention type.

    def hashed(self, keys: list[int]) -> None:
        """Each of these keys finds a block."""
        self._found.update(dict.fromkeys(keys, 0))
        self.prefixes.pool.tell_copies(keys)

    def leaving(self, keys: list[int]) -> None:
        """These keys are about to find no block any more. The first of a position's takes it along."""
        lru, pins, writing = self._lru, self._pins, self._writing
        positions = self._positions(keys)
        for position in positions:
            if position in lru:
                lru.move_to_end(position)  # it was in use until now
        absent = [each for each in positions if each not in lru and each not in pins and each not in writing]
        if self.num_blocks(keys[0]) > 1:  # what went with another group's block is not whole any more
            absent = [position for position in absent if self._is_on_device(position)]
        if absent:
            self._writer.evicted(absent)

    def left(self, keys: list[int]) -> None:
        """These keys find no block any more."""
        found, lru, pins = self._found, self._lru, self._pins
        if self.num_blocks(keys[0]) == 1:
            gone = [key for key in keys if key not in lru and key not in pins]
        else:
            gone = [key for key in keys if not self.holds(self._position(key))]
        for key in gone:
            del found[key]
        self.prefixes.pool.tell_copies(gone)

    def _position(self, key: int) -> int:
        offset = key % self.manager.key_stride
        return key - offset + self._offsets[offset][0]

    def _positions(self, keys: list[int]) -> list[int]:
        """Each position of these keys once, in order."""
        if self.num_blocks(keys[0]) == 1:
            return keys
        return list(dict.fromkeys(map(self._position, keys)))

    def _keys(self, position: int) -> list[int]:
        """Those of a position's blocks, one for each group."""
        offset = position % self.manager.key_stride
        offsets = self._offsets[offset]
        return [position - offset + each for each in offsets] if len(offsets) > 1 else [position]

    def _all_keys(self, positions: list[int]) -> list[int]:
        """Those of all these positions, which are of one type."""
        if self.num_blocks(positions[0]) == 1:
            return positions
        return [key for position in positions for key in self._keys(position)]

    def _is_on_device(self, position: int) -> bool:
        on_device = self._on_device
        return all([key in on_device for key in self._keys(position)])  # noqa: C419  a generator costs more

    # Coming to the host.

    def begin_write(self, positions: list[int]) -> list[int]:
        """Keep room for positions of one type, or for the last of them if what is pinned or on its way leaves no more.

        Gives back those that there is room for; they can be hit once they are there. The least recently used make room.
        """
        num_bytes = self.bytes_of(positions[0])
        most = (self.capacity_bytes - self._busy_bytes) // num_bytes
        if most < len(positions):
            positions = positions[len(positions) - most :]
        num_bytes *= len(positions)
        self._make_room(num_bytes)
        self._writing.update(positions)
        self.used_bytes += num_bytes
        self._busy_bytes += num_bytes
        return positions

    def end_write(self, positions: list[int]) -> None:
        """Positions of one type, which were begun together, are there."""
        self._writing.difference_update(positions)
        self._busy_bytes -= self.bytes_of(positions[0]) * len(positions)
        self._lru.update(dict.fromkeys(positions))
        keys = self._all_keys(positions)
        self._found.update(dict.fromkeys(keys, 0))
        self.prefixes.pool.tell_copies(keys)
        self.num_changes += 1

    def _make_room(self, num_bytes: int) -> None:
        lru, found, on_device, stride = self._lru, self._found, self._on_device, self.manager.key_stride
        gone: list[int] = []
        while self.used_bytes + num_bytes > self.capacity_bytes:
            position, _ = lru.popitem(last=False)
            offset = position % stride
            offsets = self._offsets[offset]
            for each in offsets:
                key = position - offset + each
                if key not in on_device:
                    del found[key]
                    gone.append(key)
            self.used_bytes -= self._bytes[offset]
            self.num_evicted_blocks += len(offsets)
            self.num_changes += 1
        if gone:
            self.prefixes.pool.tell_copies(gone)

    # Going back.

    def find(self, keys: PrefixKeys, num_tokens: int, hit_tokens: int, most: int) -> Resumable:
        """Where a request of `num_tokens` could resume beyond the device's own hit.

        Of more than `most` lengths so many are looked at, evenly spread; the longest is always among them.
        """
        max_tokens = num_tokens - 1
        units = keys.first(max_tokens // self.manager.hash_unit)
        hit = self.prefixes.coordinator.find_hit(units, max_tokens, max_tokens)
        lengths = {hit.num_tokens}
        alignment = self.manager.scheduler_block
        step = cdiv((hit.num_tokens - hit_tokens) // alignment, most) * alignment
        if step > 0:
            # Up to there full attention lacks nothing, so it may look for the first miss in the quick way.
            self.prefixes.pool.keeps_beginnings = True
            for length in range(hit.num_tokens - step, hit_tokens, -step):
                lengths.add(self.prefixes.peek_hit(keys, length + 1))
            self.prefixes.pool.keeps_beginnings = False
        fetches = [
            Fetch(length, self._missing_bytes(units, length)) for length in sorted(lengths) if length > hit_tokens
        ]
        return Resumable(fetches, hit.junction)

    def _missing_bytes(self, keys: list[int], num_tokens: int) -> int:
        num_bytes = 0
        for manager in self.manager.managers:
            first, end = manager.first_hit_position(num_tokens), num_tokens // manager.block_size
            num_missing = end - first - len(manager.cached_among(keys, first, end))
            num_bytes += num_missing * self.bytes_of(manager.key_offsets[0])
        return num_bytes

    def missing(self, keys: PrefixKeys, num_tokens: int) -> list[int]:
        """The positions that a request lacks on the device to resume after `num_tokens`, ends before beginnings."""
        units = keys.first(num_tokens // self.manager.hash_unit)
        positions: list[int] = []
        for manager in self.manager.managers:
            first, end = manager.first_hit_position(num_tokens), num_tokens // manager.block_size
            cached = set(manager.cached_among(units, first, end))
            offset, size = manager.key_offsets[0], manager.units_per_block
            positions += [
                units[(at + 1) * size - 1] + offset for at in range(end - 1, first - 1, -1) if at not in cached
            ]
        return positions

    def pin(self, positions: Sequence[int]) -> None:
        """These positions, which are here, stay until they are unpinned as often."""
        for position in positions:
            num_pins = self._pins.get(position, 0)
            if not num_pins:
                del self._lru[position]
                self._busy_bytes += self.bytes_of(position)
            self._pins[position] = num_pins + 1

    def unpin(self, positions: Sequence[int]) -> None:
        """Nobody reads them any more for this once. The last of them was used last."""
        for position in positions:
            num_pins = self._pins.pop(position)
            if num_pins > 1:
                self._pins[position] = num_pins - 1
            else:
                self._lru[position] = None
                self._busy_bytes -= self.bytes_of(position)

    # Looking in.

    def check_integrity(self) -> None:
        """Raise InvariantError if the tier contradicts itself or the device's pool.

        host-capacity: what is here and on its way takes no more than the capacity, and is counted right.
        host-once: a position is here unread, here and being read, or on its way.
        both-tiers: what can be resumed from is what the device finds, and whole positions that are here.
        """
        here = [*self._lru, *self._pins]
        all_of_them = [*here, *self._writing]
        if len(set(all_of_them)) != len(all_of_them):
            raise InvariantError("host-once: a position is on the host twice")
        used, busy = (sum(map(self.bytes_of, those)) for those in (all_of_them, [*self._pins, *self._writing]))
        if (used, busy) != (self.used_bytes, self._busy_bytes) or used > self.capacity_bytes:
            raise InvariantError(f"host-capacity: {used} bytes of {self.capacity_bytes}, counted {self.used_bytes}")
        if self._found.keys() != self._on_device.keys() | {key for position in here for key in self._keys(position)}:
            raise InvariantError("both-tiers: keys are found that neither tier has, or not found that one has")
