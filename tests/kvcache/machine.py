"""Random programs for the allocator: requests come, compute, share beginnings, give back and are thrown out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.grouping import group_layers
from kvcache.hashing import PrefixKeys, hash_tokens
from kvcache.layout import plan_layout
from kvcache.manager import CacheSettings, KVCacheManager
from kvcache.managers import BlockTable
from kvcache.pool_kinds import ONE_SIZE, PoolKind
from kvcache.specs import KVCacheSpec
from tests.kvcache.model import Model, ModelRequest, Prefixes

MOST_LIVING = 6


@dataclass(frozen=True)
class Configuration:
    """A model's layers, the pool that they share, and the settings of its cache."""

    name: str
    specs: tuple[KVCacheSpec, ...]
    num_blocks: int
    max_model_len: int = 96
    max_in_flight_tokens: int = 32
    settings: CacheSettings = field(default_factory=lambda: CacheSettings(block_size=4))
    pool_kind: PoolKind = ONE_SIZE

    def manager(self) -> KVCacheManager:
        """A fresh pool."""
        layout = plan_layout(
            group_layers(self.specs),
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            max_in_flight_tokens=self.max_in_flight_tokens,
            pool_kind=self.pool_kind,
        )
        return KVCacheManager(layout, self.settings)


class PoolMachine(RuleBasedStateMachine):
    """Drives one manager as a scheduler may, and compares it with the model after every call."""

    configuration: ClassVar[Configuration]
    num_calls: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.manager = self.configuration.manager()
        self.model = Model(self.manager)
        self.prefixes = Prefixes()
        self.living: list[ModelRequest] = []
        self.past: list[list[int]] = [[]]
        """Public tokens of all requests so far: beginnings to share."""
        self.serial = 0
        states = [spec.block_size for spec in self.configuration.specs if spec.kind == "mamba"]
        aligned = any(getattr(spec, "cache_mode", "none") == "align" for spec in self.configuration.specs)
        self.state_block = min(states) if aligned else None

    # One call, checked.

    def call(self, verb: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        answer = verb(*arguments, **keywords)
        type(self).num_calls += 1
        self.manager.check_integrity([request.blocks for request in self.living])
        return answer

    def snapshot(self) -> object:
        """All that a refused call must leave alone."""
        pool = self.manager.pool
        tables = [[(table.first_held, *table.ids) for table in request.blocks.tables] for request in self.living]
        return pool.num_free, pool.num_evictions, dict(pool.block_of), tables

    def nth(self, number: int, is_running: bool) -> ModelRequest:
        candidates = [request for request in self.living if request.is_running == is_running]
        return candidates[number % len(candidates)]

    def has_running(self) -> bool:
        return any(request.is_running for request in self.living)

    def has_waiting(self) -> bool:
        return any(not request.is_running for request in self.living)

    # What happens.

    @precondition(lambda self: len(self.living) < MOST_LIVING)
    @rule(
        parent=st.integers(0, 7),
        shared=st.integers(0, 80),
        tail=st.lists(st.integers(0, 1), max_size=12),
        num_own=st.integers(1, 24),
        num_output=st.integers(1, 40),
    )
    def submit(self, parent: int, shared: int, tail: list[int], num_own: int, num_output: int) -> None:
        """A request comes: the beginning of an earlier one, tokens that may be equal by chance, tokens of its own."""
        limit = self.configuration.max_model_len
        public = [*self.past[-1 - parent % len(self.past)][:shared], *tail][: limit - 2]
        prompt_tokens = min(len(public) + num_own, limit - 1)
        total = min(prompt_tokens + num_output, limit)
        self.serial += 1
        own = [self.serial * 1000 + place for place in range(total - len(public))]
        self.add(ModelRequest(public + own, len(public), prompt_tokens))

    @precondition(lambda self: len(self.living) < MOST_LIVING)
    @rule(parent=st.integers(0, 3), more=st.lists(st.integers(0, 1), max_size=60), prompt=st.integers(1, 95))
    def submit_known(self, parent: int, more: list[int], prompt: int) -> None:
        """A request comes whose output others may share too, as in a conversation."""
        tokens = [*self.past[-1 - parent % len(self.past)], *more, 0, 0][: self.configuration.max_model_len]
        self.serial += 1
        self.add(ModelRequest(tokens, len(tokens), min(prompt, len(tokens) - 1)))

    def add(self, request: ModelRequest) -> None:
        keys = PrefixKeys(hash_tokens(request.tokens[: request.public], self.manager.hash_unit), self.serial)
        request.names = self.prefixes.of(request.tokens)
        request.blocks = self.manager.new_request(keys, request.prompt_tokens)
        self.past.append(request.tokens[: request.public])
        self.living.append(request)

    @rule()
    def next_step(self) -> None:
        """The step is over."""
        self.model.step += 1
        self.call(self.manager.new_step)

    @precondition(has_waiting)
    @rule(number=st.integers(0, 5), size=st.integers(1, 40), reserves=st.booleans(), alone=st.booleans())
    def admit(self, number: int, size: int, reserves: bool, alone: bool) -> None:
        """A request is looked up and admitted, or refused for want of blocks."""
        request, manager = self.nth(number, is_running=False), self.manager
        expected = self.model.longest_hit(request)
        hit = self.call(manager.find_hit, request.blocks, request.known)
        assert hit == expected
        assert request.blocks.junction == 0 or hit < request.blocks.junction < request.known
        num_tokens = self.chunk_end(request, hit, size)
        reserve = request.known if reserves else 0
        before, was_free = self.snapshot(), manager.pool.num_free
        readable = self.call(manager.can_read, request.blocks, hit)
        needed = self.model.blocks_to_admit(request, hit, num_tokens, reserve)
        if self.call(manager.admit, request.blocks, hit, num_tokens, reserve_tokens=reserve, alone=alone):
            assert readable
            self.check_hit_is_old(request, hit)
            self.model.admitted(request, hit, num_tokens)
            self.model.check_full_is_cached(request, min(num_tokens, request.public))
            self.check_prompt_is_reusable(request, hit)
        else:
            assert self.snapshot() == before
            room = was_free - (0 if alone else int(manager.settings.watermark * manager.pool.num_blocks))
            assert not readable or needed + self.free_blocks_of_hit(request, hit) > room

    def free_blocks_of_hit(self, request: ModelRequest, hit: int) -> int:
        """Blocks that the request's hit would take out of the free queue."""
        if not hit:
            return 0
        keys = request.blocks.keys.first(hit // self.manager.hash_unit)
        hits = (manager.hit_blocks(keys, hit) for manager in self.manager.managers)
        held = {block for other in self.living for table in other.blocks.tables for block in table.ids}
        return len({block for blocks in hits for block in blocks} - held)

    def check_hit_is_old(self, request: ModelRequest, hit: int) -> None:
        """States are read from an earlier step: one that is written now can be copied only afterwards."""
        for nth, manager in enumerate(self.manager.managers):
            if hit and manager.spec.kind == "mamba":
                block = next(self.model.table(nth, request))[2]
                assert self.model.content[block].step < self.model.step

    def chunk_end(self, request: ModelRequest, start: int, size: int) -> int:
        """Where a chunk of up to `size` tokens ends.

        A chunk that writes states ends in the block that it begins in, or with a block, and at the last
        place from which the same prompt could resume.
        """
        end = min(start + size, request.known)
        block = self.state_block
        if not block:
            return end
        edge = (start // block + 1) * block
        if end > edge:
            end = edge if start % block else end // block * block
        boundary = (request.prompt_tokens - 1) // block * block
        return boundary if start < boundary < end else end

    @precondition(has_running)
    @rule(number=st.integers(0, 5), size=st.integers(1, 40), lags=st.booleans(), caches=st.integers(0, 5))
    def extend(self, number: int, size: int, lags: bool, caches: int) -> None:
        """A running request computes a chunk of its prompt, or one more token."""
        request = self.nth(number, is_running=True)
        if not self.has_next_token(request):
            return
        num_processed = self.settled(request, lags)
        start, num_tokens = request.computed, self.chunk_end(request, request.computed, size)
        needed = self.model.blocks_to_extend(request, num_tokens)
        grown = self.call(self.manager.extend, request.blocks, num_processed, num_tokens)
        if not self.has_grown(request, num_processed, num_tokens, needed, grown):
            return
        request.always_cached &= caches > 0
        if caches:
            self.call(self.manager.cache, request.blocks, num_tokens)
            self.model.check_full_is_cached(request, min(num_tokens, request.public))
        self.check_prompt_is_reusable(request, start)

    @precondition(has_running)
    @rule(number=st.integers(0, 5), num_tokens=st.integers(1, 12), lags=st.booleans(), trusts=st.booleans())
    def decode(self, number: int, num_tokens: int, lags: bool, trusts: bool) -> None:
        """A running request computes several tokens, one in a step; with `trusts` nobody asks between two events."""
        request, manager = self.nth(number, is_running=True), self.manager
        has_room = manager.has_room_for_decodes(1, num_tokens)
        for _ in range(num_tokens):
            if not self.has_next_token(request):
                return
            start, num_processed = request.computed, self.settled(request, lags)
            lag = start - num_processed
            is_quiet = start < manager.next_event(request.blocks, lag)
            if is_quiet and trusts:
                self.has_grown(request, num_processed, start + 1, 0, grown=True)
                continue
            before = self.snapshot() if is_quiet else None
            needed = self.model.blocks_to_extend(request, start + 1)
            num_cacheable = start + 1 - lag
            grown = self.call(manager.extend_by_one, request.blocks, num_processed, start + 1, num_cacheable)
            if not self.has_grown(request, num_processed, start + 1, needed, grown):
                assert not has_room
                return
            assert not is_quiet or self.snapshot() == before
            self.model.check_full_is_cached(request, min(num_cacheable, request.public))
            if not lag:
                self.check_prompt_is_reusable(request, start)

    @precondition(has_running)
    @rule(num_steps=st.integers(1, 12))
    def run_on(self, num_steps: int) -> None:
        """Requests decode for some steps in which nobody looks: what only grows takes its blocks at the end."""
        manager = self.manager
        run = [each for each in self.living if each.is_running and each.computed + num_steps <= len(each.tokens)]
        if not run or not self.call(manager.has_room_for_decodes, len(run), num_steps):
            return
        growing: list[BlockTable] = []
        waiting: dict[int, int] = {}
        for _ in range(num_steps):
            self.next_step()
            for nth, request in enumerate(run):
                num_tokens = waiting.get(nth, request.computed) + 1
                if manager.only_grows(request.blocks, num_tokens):
                    growing += self.call(manager.reserve, request.blocks, num_tokens)
                    waiting[nth] = num_tokens
                    continue
                self.call(manager.take_for, growing)
                growing.clear()
                self.catch_up(run, waiting)
                assert self.call(manager.extend_by_one, request.blocks, request.computed, num_tokens, num_tokens)
                assert self.has_grown(request, request.computed, num_tokens, 0, grown=True)
        self.call(manager.take_for, growing)
        self.catch_up(run, waiting)

    def catch_up(self, run: list[ModelRequest], waiting: dict[int, int]) -> None:
        """Tell the model of the tokens whose blocks have been taken at last."""
        for nth, num_tokens in waiting.items():
            self.model.computes(run[nth], num_tokens)
            run[nth].known = max(run[nth].known, num_tokens)
        waiting.clear()

    def has_next_token(self, request: ModelRequest) -> bool:
        """Let a running request sample a token where it has computed all it knows; False if it has had its last."""
        if request.planned_in_step == self.model.step:
            self.next_step()
        request.known = min(max(request.known, request.computed + 1), len(request.tokens))
        return request.computed < request.known

    def settled(self, request: ModelRequest, lags: bool) -> int:
        """Tokens whose step is over: those of the last planned one may be in flight still."""
        return max(request.processed, request.in_flight_from if lags else request.computed)

    def has_grown(self, request: ModelRequest, num_processed: int, num_tokens: int, needed: int, grown: bool) -> bool:
        """Compare the answer of a request that wanted slots up to `num_tokens` with the model."""
        self.model.gives_back(request, num_processed)
        if grown:
            self.model.computes(request, num_tokens)
        else:
            assert needed > self.manager.pool.num_free
        self.model.check([request])
        return grown

    def check_prompt_is_reusable(self, request: ModelRequest, start: int) -> None:
        """Once the last place to resume in a prompt is computed, the same prompt resumes there."""
        step = self.manager.scheduler_block
        boundary = (request.prompt_tokens - 1) // step * step
        is_shared = boundary <= request.public // self.manager.hash_unit * self.manager.hash_unit
        is_cached = self.manager.coordinator.caches and request.always_cached and is_shared
        if is_cached and start <= boundary <= request.computed:
            again = self.manager.new_request(request.blocks.keys, request.prompt_tokens)
            assert self.call(self.manager.find_hit, again, request.prompt_tokens) == boundary

    @precondition(has_running)
    @rule(number=st.integers(0, 5), ends=st.booleans(), lags=st.booleans())
    def free(self, number: int, ends: bool, lags: bool) -> None:
        """A running request ends, or is preempted and waits again."""
        request = self.nth(number, is_running=True)
        num_processed = self.settled(request, lags)
        self.call(self.manager.free, request.blocks, num_processed)
        self.model.check_full_is_cached(request, num_processed)
        self.model.freed(request)
        if ends:
            self.living.remove(request)

    @invariant()
    def tables_are_right(self) -> None:
        self.model.check(self.living)

    def teardown(self) -> None:
        """After everything is freed, every block but the null block is free."""
        for request in self.living:
            self.manager.free(request.blocks, request.computed)
        self.living.clear()
        self.manager.check_integrity([])
        assert self.manager.pool.num_free == self.manager.pool.num_blocks - 1
