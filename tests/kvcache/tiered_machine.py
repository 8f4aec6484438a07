"""Random programs for a pool with a host tier behind it: what is evicted is copied out, later, and fetched back."""

from collections import deque
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from kvcache.errors import InvariantError
from kvcache.host_tier import HostTier
from kvcache.managers import Load
from kvcache.pool_kinds import ONE_SIZE
from tests.kvcache.machine import PoolMachine
from tests.kvcache.model import Content, Model, ModelRequest

MOST_PINNED = 3


class TieredMachine(PoolMachine):
    """Drives both tiers, and remembers which tokens each position on the host was computed from."""

    capacity_positions: ClassVar[int] = 12

    def __init__(self) -> None:
        super().__init__()
        layout, settings = self.manager.layout, self.manager.settings
        assert layout.pool_kind == ONE_SIZE
        most_bytes = max(group.bytes_per_block * len(layout.groups) for group in layout.groups)
        self.tier = HostTier(layout, settings, self.capacity_positions * most_bytes, self)
        self.manager = self.tier.manager
        self.model = Model(self.manager)
        self.written: dict[int, list[Content]] = {}
        """By position: what was in its blocks when they left the device."""
        self.on_the_way: deque[list[int]] = deque()
        self.pinned: deque[list[int]] = deque()

    # A `Writer`, whose link may be busy.

    link_takes = 99

    def evicted(self, positions: list[int]) -> None:
        taken = self.tier.begin_write(positions[-self.link_takes :]) if self.link_takes else []
        for position in taken:
            self.written[position] = [
                self.model.content[self.manager.pool.block_of[key]] for key in self.keys_of(position)
            ]
        if taken:
            self.on_the_way.append(taken)

    def keys_of(self, position: int) -> list[int]:
        offset = position % self.manager.key_stride
        (offsets,) = [each.key_offsets for each in self.manager.managers if offset in each.key_offsets]
        return [position - offset + each for each in offsets]

    @rule(num_blocks=st.sampled_from([0, 1, 3, 99]))
    def link_is_busy(self, num_blocks: int) -> None:
        """From now on it takes so many positions of those that are evicted together."""
        self.link_takes = num_blocks

    @precondition(lambda self: self.on_the_way)
    @rule()
    def arrives(self) -> None:
        """What was evicted first is on the host now."""
        self.tier.end_write(self.on_the_way.popleft())

    # A reader.

    def union(self) -> set[tuple[int, int]]:
        """(group, prefix) of all contents that either tier has."""
        here = [
            content[:2] for position, whole in self.written.items() if self.tier.holds(position) for content in whole
        ]
        return {*self.model.cached(), *here}

    def resumable(self, request: ModelRequest) -> list[int]:
        """All lengths at which every type can resume, tried one by one; its own tokens after a preemption included."""
        union, step = self.union(), self.manager.scheduler_block
        return [
            length
            for length in range(step, request.known, step)
            if all(self.model._can_resume(manager, request, length, union) for manager in self.manager.managers)
        ]

    @precondition(PoolMachine.has_waiting)
    @rule(number=st.integers(0, 5), nth=st.integers(0, 20), size=st.integers(1, 40), most=st.integers(1, 30))
    def fetch(self, number: int, nth: int, size: int, most: int) -> None:
        """A waiting request fetches what it lacks, up to one of the places at which it may resume, and is admitted."""
        request, manager, tier = self.nth(number, is_running=False), self.manager, self.tier
        hit = self.call(manager.find_hit, request.blocks, request.known)
        fetches, junction = tier.find(request.blocks.keys, request.known, hit, most)
        lengths = [length for length in self.resumable(request) if length > hit]
        assert {fetch.num_tokens for fetch in fetches} <= set(lengths)
        assert [fetch.num_tokens for fetch in fetches][-1:] == lengths[-1:]
        if most >= manager.layout.max_model_len // manager.scheduler_block:
            assert [fetch.num_tokens for fetch in fetches] == lengths
        assert junction == 0 or lengths[-1:] < [junction] <= [request.known - 1]
        if not fetches:
            return
        request.blocks.junction = max(request.blocks.junction, junction)
        num_tokens, num_bytes = fetches[nth % len(fetches)]
        missing = tier.missing(request.blocks.keys, num_tokens)
        assert num_bytes == sum(map(tier.bytes_of, missing))
        tier.pin(missing)
        loads = manager.plan_load(request.blocks, num_tokens, num_tokens)
        if self.call(manager.has_room_for_load, loads, 0):
            self.call(manager.start_load, request.blocks, loads)
            self.fill(request, loads)
            tier.unpin(missing)
            self.admit_loaded(request, num_tokens, size)
        else:
            tier.unpin(missing)

    def fill(self, request: ModelRequest, loads: list[Load]) -> None:
        """Copy from the host what the device lacks."""
        for nth, (manager, load) in enumerate(zip(self.manager.managers, loads, strict=True)):
            keys = request.blocks.keys.first(load.positions.stop * manager.units_per_block)
            for at, group, block in self.model.table(nth, request):
                if at not in load.cached:
                    position = keys[(at + 1) * manager.units_per_block - 1] + manager.key_offsets[0]
                    assert self.tier.holds(position)
                    self.model.content[block] = self.written[position][group - manager.groups[0]]

    def admit_loaded(self, request: ModelRequest, start: int, size: int) -> None:
        """Go on behind what was fetched, or give it all back for want of blocks."""
        num_tokens = self.chunk_end(request, start, size)
        self.call(self.manager.cache, request.blocks, start)
        if self.call(self.manager.admit_loaded, request.blocks, start, num_tokens):
            self.model.admitted(request, start, num_tokens)
            self.model.check_full_is_cached(request, min(num_tokens, request.public))
        else:
            self.call(self.manager.free, request.blocks, start)
            self.model.freed(request)

    @precondition(lambda self: len(self.pinned) < MOST_PINNED and self.written)
    @rule(number=st.integers(0, 50), num=st.integers(1, 6))
    def starts_reading(self, number: int, num: int) -> None:
        """Somebody reads positions, those of another reader perhaps, and takes his time."""
        here = [position for position in self.written if self.tier.holds(position)]
        chosen = [here[(number + nth) % len(here)] for nth in range(min(num, len(here)))]
        self.tier.pin(chosen)
        self.pinned.append(chosen)

    @precondition(lambda self: self.pinned)
    @rule()
    def ends_reading(self) -> None:
        """He is through."""
        self.tier.unpin(self.pinned.popleft())

    # What must hold after every call.

    @invariant()
    def the_host_is_in_order(self) -> None:
        """pinned-stay: what is being read is there."""
        self.tier.check_integrity()
        if not all(self.tier.holds(position) for positions in self.pinned for position in positions):
            raise InvariantError("pinned-stay: a position has gone while somebody reads it")
