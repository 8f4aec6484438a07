"""`KVCacheManager`: the verbs that a scheduler needs.

`find_hit` asks what need not be computed, `admit` gives a new request its slots, `extend` gives a
running one more, `free` takes them all back. Shortage is an answer: `admit` and `extend` return
False and change nothing that matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.block_pool import BlockPool
from kvcache.coordinator import coordinator_for
from kvcache.errors import KVCacheError
from kvcache.grouping import KVCacheGroup
from kvcache.hashing import PrefixKeys
from kvcache.layout import KVCacheLayout, block_sizes
from kvcache.managers import NEVER, BlockTable, CachePolicy, Load, managers_for
from kvcache.specs import cdiv

__all__ = ["CacheSettings", "KVCacheManager", "RequestBlocks"]

NEVER_ASKED = (0, 0)
NO_HITS: list[list[int]] = []


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What a server's flags say about its KV cache; the defaults are vLLM's."""

    block_size: int = 16
    enable_prefix_caching: bool = True
    prefix_cache_retention_interval: int | None = 0
    """Tokens between the windows and states that are kept for hits; None keeps all ("dense")."""
    watermark: float = 0.0
    """Share of the pool that a newly admitted request must leave free, while others run."""
    caches_every_block: bool = False
    """Every full block of every group is hashed, as in the design document, even where no hit can use it."""


class RequestBlocks:
    """What the manager knows of one request: its prefix keys and its block tables."""

    __slots__ = ("cache_at", "hit_asked", "hit_tokens", "junction", "keys", "prompt_tokens", "tables")

    def __init__(self, keys: PrefixKeys, prompt_tokens: int, tables: tuple[BlockTable, ...]) -> None:
        self.keys = keys
        self.prompt_tokens = prompt_tokens
        self.tables = tables
        self.junction = 0
        """Tokens after which other requests were seen to part from this one; 0 if none were."""
        self.hit_tokens = 0
        """The hit found last."""
        self.hit_asked = NEVER_ASKED
        """For how many tokens it was asked, and how often the pool had hashed something shared by then."""
        self.cache_at = 0
        """Tokens that must be there before caching has something to do."""


class KVCacheManager:
    """All blocks of one replica, and who holds them."""

    def __init__(self, layout: KVCacheLayout, settings: CacheSettings, pool: BlockPool | None = None) -> None:
        """Raise KVCacheError for settings that a server refuses with these layers.

        `pool`: one of the layout's kind and size that somebody made, still unused.
        """
        groups = layout.groups
        self.layout = layout
        self.settings = settings
        self.scheduler_block, self.hash_unit = block_sizes(groups, settings.block_size, settings.enable_prefix_caching)
        policy = CachePolicy(
            self.hash_unit,
            self.scheduler_block,
            settings.prefix_cache_retention_interval,
            settings.caches_every_block,
        )
        self._check(groups, policy)
        self.pool = layout.pool_kind.new_pool(groups, layout.num_blocks) if pool is None else pool
        self.managers = managers_for(groups, self.pool, policy, layout.max_model_len, layout.max_in_flight_tokens)
        self.coordinator = coordinator_for(self.managers, len(groups), settings.enable_prefix_caching, policy)
        self.watermark_blocks = int(settings.watermark * layout.num_blocks)
        self._never_gives_back = self.pool.is_uniform and all(
            manager.spec.type_key[0] == "full" for manager in self.managers
        )
        self._state_managers = [manager for manager in self.managers if manager.spec.kind == "mamba"]
        self.key_stride = max(1, len(groups))
        """Between two prefix keys of a request: room for one key per group."""
        self._anchor()

    def _check(self, groups: Sequence[KVCacheGroup], policy: CachePolicy) -> None:
        caching = self.settings.enable_prefix_caching
        for group in groups:
            size = group.spec.block_size
            if policy.alignment % size or (caching and size % policy.hash_unit):
                raise KVCacheError(
                    f"blocks of {size} tokens do not fit beside a hash unit of {policy.hash_unit}"
                    f" and hits in steps of {policy.alignment} tokens"
                )
            if caching and group.spec.kind == "chunked" and size != policy.alignment:
                raise KVCacheError("chunked local attention needs the same block size in all groups")
        interval = policy.retention_interval
        if not interval:
            return
        if not any(group.spec.kind in ("sliding", "mamba") for group in groups):
            raise KVCacheError(
                "--prefix-cache-retention-interval: must be 0: no layer has a sliding window or a Mamba state"
            )
        if interval < 0 or interval % policy.alignment:
            raise KVCacheError(
                f"--prefix-cache-retention-interval: must be a multiple of {policy.alignment} tokens, got {interval}"
            )

    def _anchor(self) -> None:
        """Blocks beside full attention can be hit only where it has the same prefix."""
        full = [manager for manager in self.managers if manager.spec.type_key[0] == "full"]
        if self.settings.enable_prefix_caching and full:
            for manager in self.managers:
                if manager not in full:
                    manager.is_anchored = True
                    full[0].pool.anchor(manager.tally, manager.pool)

    # The verbs.

    def new_request(self, keys: PrefixKeys, prompt_tokens: int) -> RequestBlocks:
        """A request with empty tables. `keys` are the prefix keys of its tokens, prompt and output."""
        keys.stride = self.key_stride
        tables = tuple(manager.new_table(keys, prompt_tokens) for manager in self.managers)
        return RequestBlocks(keys, prompt_tokens, tables)

    def new_step(self) -> None:
        """A new step is being planned: what the step before wrote can be read."""
        for manager in self._state_managers:
            manager.new_step()

    def find_hit(self, blocks: RequestBlocks, num_tokens: int) -> int:
        """Tokens of a request of `num_tokens` known tokens that need not be computed.

        At least one token is always left to compute, so that there is something to sample from.
        """
        if not self.coordinator.caches:
            return 0
        max_tokens = num_tokens - 1
        # While it waits it asks again and again. Its hit can only have shrunk unless something was hashed
        # that it might share.
        asked = (num_tokens, self.pool.num_shared_hashings)
        bound = blocks.hit_tokens if blocks.hit_asked == asked else max_tokens
        hit = self.coordinator.find_hit(blocks.keys.first(max_tokens // self.hash_unit), max_tokens, bound)
        blocks.junction = hit.junction
        blocks.hit_tokens, blocks.hit_asked = hit.num_tokens, asked
        return hit.num_tokens

    def can_read(self, blocks: RequestBlocks, hit_tokens: int) -> bool:
        """Whether a hit can be read in this step: a Mamba state that the step itself writes cannot."""
        if not hit_tokens:
            return True
        keys = blocks.keys.first(hit_tokens // self.hash_unit)
        return all(manager.may_take_hit(keys, hit_tokens) for manager in self._state_managers)

    def admit(
        self, blocks: RequestBlocks, hit_tokens: int, num_tokens: int, *, reserve_tokens: int = 0, alone: bool = False
    ) -> bool:
        """Give a request slots for its first `num_tokens`, of which `hit_tokens` are a hit just found.

        With `reserve_tokens` the blocks for so many tokens must be free beside the hit, though only those for
        `num_tokens` are taken. A watermark is left free unless the request runs `alone`.
        """
        if not self.can_read(blocks, hit_tokens):
            return False
        keep = 0 if alone else self.watermark_blocks
        needs = self._needs(hit_tokens, num_tokens, reserve_tokens)
        if not self.pool.has_room(needs, NO_HITS, keep):
            return False
        hits: list[list[int]] = []
        if hit_tokens:
            keys = blocks.keys.first(hit_tokens // self.hash_unit)
            hits = [manager.hit_blocks(keys, hit_tokens) for manager in self.managers]
            if not self.pool.has_room(needs, hits, keep):
                return False
        self._start(blocks, hits, hit_tokens, num_tokens)
        return True

    def _needs(self, hit_tokens: int, num_tokens: int, reserve_tokens: int) -> list[int]:
        """For each attention type, the blocks that must be free beside those of the hit for an admission."""
        managers = self.managers
        needs = [manager.num_blocks_at_admission(num_tokens, hit_tokens, capped=False) for manager in managers]
        if reserve_tokens:
            reserved = [
                manager.num_blocks_at_admission(reserve_tokens, hit_tokens, capped=True) for manager in managers
            ]
            if not self.pool.is_uniform:  # behind a long hit a window reserves less than the first chunk takes
                return list(map(max, needs, reserved))
            if sum(reserved) > sum(needs):
                return reserved
        return needs

    def _can_take(self, blocks: RequestBlocks, num_tokens: int, needed: int) -> bool:
        """Whether a request can have `needed` blocks, which are those that it lacks for `num_tokens`."""
        if self.pool.is_uniform:
            return needed <= self.pool.num_free
        return self.pool.has_room([table.manager.num_new_blocks(table, num_tokens) for table in blocks.tables], NO_HITS)

    def _start(self, blocks: RequestBlocks, hits: list[list[int]], hit_tokens: int, num_tokens: int) -> None:
        """Give a request that fits the blocks of its hit (one list for each table, none without a hit), then others."""
        if hit_tokens:
            for table, hit in zip(blocks.tables, hits, strict=True):
                table.manager.take_hit(table, hit, hit_tokens)
        for table in blocks.tables:
            table.manager.extend(table, num_tokens)
        self.cache(blocks, num_tokens)

    def extend(self, blocks: RequestBlocks, num_processed: int, num_tokens: int) -> bool:
        """Give a running request slots up to `num_tokens`, after giving back what `num_processed` settled tokens left.

        What has left a window is given back even where the answer is False.
        """
        needed = 0
        for table in blocks.tables:
            if num_processed >= table.free_at:
                table.manager.free_unneeded(table, num_processed)
            if num_tokens > table.num_slots:
                needed += table.manager.num_new_blocks(table, num_tokens)
        if needed:
            if not self._can_take(blocks, num_tokens, needed):
                return False
            for table in blocks.tables:
                if num_tokens > table.num_slots:
                    table.manager.extend(table, num_tokens)
        return True

    def extend_by_one(self, blocks: RequestBlocks, num_processed: int, num_tokens: int, num_cacheable: int) -> bool:
        """`extend` and `cache` for a decoding request that has slots for all but perhaps the last of `num_tokens`."""
        needed = 0
        for table in blocks.tables:
            if num_processed >= table.free_at:
                table.manager.free_unneeded(table, num_processed)
            if num_tokens > table.num_slots:
                needed += table.manager.num_groups
        if needed:
            if not self._can_take(blocks, num_tokens, needed):
                return False
            for table in blocks.tables:
                if num_tokens > table.num_slots:
                    table.manager.take_one(table)
        if num_cacheable >= blocks.cache_at:
            self.cache(blocks, num_cacheable)
        return True

    # Tokens that are computed elsewhere. A request gets blocks for them at once, and `cache` is called, before it
    # goes on, when their contents have arrived.

    def plan_load(self, blocks: RequestBlocks, hit_tokens: int, num_tokens: int) -> list[Load]:
        """What each attention type needs so that a request resumes after `num_tokens`.

        Cached blocks of its first `hit_tokens` are used as they are, the others must be filled.
        """
        keys = blocks.keys.first(num_tokens // self.hash_unit)
        return [manager.plan_load(keys, hit_tokens, num_tokens) for manager in self.managers]

    def has_room_for_load(self, loads: Sequence[Load], keep: int, reserve_tokens: int = 0) -> bool:
        """Whether the blocks of a load can be taken, with `keep` left free; or those for `reserve_tokens` in all."""
        pairs = zip(self.managers, loads, strict=True)
        if reserve_tokens:
            needs = [manager.num_blocks_beyond(load, reserve_tokens) for manager, load in pairs]
        else:
            needs = [manager.num_blocks_of_load(load) for manager, load in pairs]
        return self.pool.has_room(needs, [load.cached_blocks + load.counted_blocks for load in loads], keep)

    def start_load(self, blocks: RequestBlocks, loads: Sequence[Load]) -> None:
        """Give a request the blocks of a load for which there is room."""
        for table, load in zip(blocks.tables, loads, strict=True):
            if load.cached_blocks:
                table.manager.pool.touch(load.cached_blocks, table.manager.tally)
        for table, load in zip(blocks.tables, loads, strict=True):
            table.manager.take_load(table, load)

    def num_blocks_to_the_end(self, blocks: RequestBlocks, num_tokens: int) -> int:
        """Blocks that a request which holds some still has to take until it has all of `num_tokens`."""
        return sum(table.manager.num_blocks_to_the_end(table, num_tokens) for table in blocks.tables)

    def admit_loaded(
        self, blocks: RequestBlocks, num_computed: int, num_tokens: int, *, reserve_tokens: int = 0, alone: bool = False
    ) -> bool:
        """`admit` for a request that holds the blocks of its first `num_computed` tokens already."""
        keep = 0 if alone else self.watermark_blocks
        if reserve_tokens:
            ahead = [table.manager.num_blocks_to_the_end(table, reserve_tokens) for table in blocks.tables]
            if not self.pool.has_room(ahead, NO_HITS, keep):
                return False
        self.keep_needed(blocks, num_computed)
        needs = [table.manager.num_new_blocks(table, num_tokens) for table in blocks.tables]
        if not self.pool.has_room(needs, NO_HITS, keep):
            return False
        for table in blocks.tables:
            table.manager.extend(table, num_tokens)
        self.cache(blocks, num_tokens)
        return True

    def keep_needed(self, blocks: RequestBlocks, num_computed: int) -> None:
        """Take back what nobody who continues a request after so many tokens will read."""
        for table in blocks.tables:
            if num_computed >= table.free_at:
                table.manager.free_unneeded(table, num_computed)

    # A decode of a model in which no attention type gives blocks back does nothing but take one now
    # and then. What is taken then depends on how many are taken, not on who takes which: so over a run
    # of steps in which nobody looks, they are taken at once.

    def only_grows(self, blocks: RequestBlocks, num_tokens: int) -> bool:
        """Whether a slot for the last of `num_tokens` is all that a decoding request can need."""
        return self._never_gives_back and num_tokens < blocks.cache_at

    def reserve(self, blocks: RequestBlocks, num_tokens: int) -> list[BlockTable]:
        """Count the slot as there; gives back the tables whose block `take_for` must take before anybody looks."""
        growing = [table for table in blocks.tables if num_tokens > table.num_slots]
        for table in growing:
            table.num_slots += table.manager.block_size
        return growing

    def take_for(self, growing: Sequence[BlockTable]) -> None:
        """Take the blocks of tables that were grown by `reserve`, in that order."""
        taken = self.pool.take(sum(table.manager.num_groups for table in growing)) if growing else []
        start = 0
        for table in growing:
            manager = table.manager
            end = start + manager.num_groups
            table.ids += taken[start:end]
            manager.tally.num_positions += 1
            start = end

    def has_room_for_decodes(self, num_requests: int, num_steps: int) -> bool:
        """Whether so many requests can surely compute one token in each of so many steps."""
        # A block takes a block of the pool at most, whatever its size: so it is enough if there are as many.
        blocks_each = sum(manager.num_groups * cdiv(num_steps, manager.block_size) for manager in self.managers)
        return num_requests * blocks_each <= self.pool.num_free

    def next_event(self, blocks: RequestBlocks, lag: int = 0) -> int:
        """The fewest computed tokens at which `extend_by_one` has something to do for a decoding request.

        `lag` tokens are computed but neither settled nor hashed when the next one is planned.
        """
        event = blocks.cache_at - 1 + lag
        for table in blocks.tables:
            event = min(event, table.num_slots, table.free_at + lag)
        return event

    def cache(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """Hash what the first `num_tokens` fill, so that other requests can hit it."""
        if not self.coordinator.caches:
            blocks.cache_at = NEVER
            return
        num_tokens = self.coordinator.num_cacheable(num_tokens)
        next_tokens = NEVER
        for table in blocks.tables:
            if num_tokens:
                table.manager.cache(table, num_tokens, blocks.junction)
            next_tokens = min(next_tokens, table.manager.next_to_cache(table, blocks.junction))
        step = self.scheduler_block
        next_step = max(cdiv(next_tokens, step), num_tokens // step + 1)
        blocks.cache_at = NEVER if next_tokens == NEVER else next_step * step

    def free(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """Take back all blocks of a request that is finished or preempted; its tables are empty again.

        What its first `num_tokens`, all that were computed, fill stays to be hit.
        """
        num_tokens = self.coordinator.num_cacheable(num_tokens)
        for table in blocks.tables:
            table.manager.free(table, num_tokens)
        blocks.junction = 0
        blocks.hit_asked = NEVER_ASKED

    # Looking in.

    def peek_hit(self, keys: PrefixKeys, num_tokens: int) -> int:
        """What `find_hit` would say for a request of `num_tokens` that is not here; nothing is noted of it.

        `keys` are spaced by `key_stride`.
        """
        if not self.coordinator.caches:
            return 0
        max_tokens = num_tokens - 1
        return self.coordinator.find_hit(keys.first(max_tokens // self.hash_unit), max_tokens, max_tokens).num_tokens

    def check_integrity(self, requests: Sequence[RequestBlocks]) -> None:
        """Raise InvariantError if pool, hashes and the tables of all living `requests` contradict each other."""
        self.pool.check_integrity(
            [place for blocks in requests for place in manager.places(blocks.tables[nth])]
            for nth, manager in enumerate(self.managers)
        )
