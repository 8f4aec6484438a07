"""Schedulers of replicas that get contents of blocks from elsewhere, and of those that others get them from.

```
waiting ──► held: blocks taken, contents on their way ──► held: contents there ──► running
running ──► held: finished, its blocks are being read ──► gone
```

As vLLM 0.32 schedules with a KV connector that loads while steps run: a request whose tokens are offered gets its
blocks at once and stands aside; who waits behind it goes on. When the contents are there, it comes before all that
hold no blocks, and computes what is left: at least one token. And who has finished keeps the blocks that are still
needed until they have been read: they are missing to others until then.
"""

from typing import ClassVar, NamedTuple, Protocol

from kvcache.manager import KVCacheManager
from kvcache.managers import Load
from simulator.batch import Batch
from simulator.contexts import Reach
from simulator.plan import Plan, SchedulerSettings
from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["NOTHING", "KVSource", "LendingScheduler", "LoadingScheduler", "Offer"]


class Offer(NamedTuple):
    """What a source has for a request."""

    num_tokens: int
    """From the request's beginning, those that are cached here included; 0: it has nothing."""
    cached_tokens: int
    """Of the first so many tokens, cached blocks are used and need not be loaded."""


NOTHING = Offer(0, 0)


class KVSource(Protocol):
    """Where keys and values come from that a replica neither holds nor computes."""

    def offer(self, request: Request, hit_tokens: int) -> Offer:
        """What a waiting request could have, whose prefix hit is `hit_tokens`. It may be asked again and again."""

    def start(self, request: Request, loads: list[Load]) -> None:
        """The blocks were taken (one load for each manager): fill them, then call the replica's `Inbox.loaded`.

        No loads: all that was offered is cached here, and the request runs.
        """


class ConnectedScheduler(Scheduler):
    """What both kinds share: contents of blocks come and go beside the steps."""

    def _preempt_for(self, plan: Plan, request: Request) -> bool:
        """As without, but whose last step is not settled is not preempted: what it writes would be overwritten.

        The round ends then, and nobody loses blocks before the next step.
        """
        victim = self._victim()
        if not self._is_in_flight(victim):
            return super()._preempt_for(plan, request)
        plan.last_order = request.order - 1
        return False

    def _is_in_flight(self, request: Request) -> bool:
        """Whether the step before this one computes something for a running request and is not settled."""
        if self._num_in_flight(request):
            return True
        return not request.is_decoding and request.order not in self.prefilling


class LoadingScheduler(ConnectedScheduler):
    """Decides for one replica that has a source of keys and values beside its own steps."""

    has_source: ClassVar[bool] = True

    def __init__(
        self, manager: KVCacheManager, settings: SchedulerSettings, reaches: tuple[Reach, ...], source: KVSource
    ) -> None:
        super().__init__(manager, settings, reaches)
        self._source = source

    def _num_delayed(self) -> int:
        return len(self.held)

    def _give_back(self, request: Request) -> None:
        """What has left its windows goes first, so that who might read the rest could."""
        self.manager.keep_needed(request.blocks, request.max_tokens - 1)
        super()._give_back(request)

    def _admit_waiting(self, plan: Plan, threshold: int, now_s: float) -> None:
        if self._admit_held(plan, threshold, now_s):
            super()._admit_waiting(plan, threshold, now_s)

    def _admit_head(self, plan: Plan, hit_tokens: int, threshold: int, now_s: float) -> bool:
        """As without, unless the source has more of the request than is cached here."""
        request = self.waiting.head()
        offer = self._source.offer(request, hit_tokens)
        if offer.num_tokens > hit_tokens:
            return self._start_load(plan, request, offer, hit_tokens)
        is_settled = super()._admit_head(plan, hit_tokens, threshold, now_s)
        if is_settled and offer.num_tokens and request.is_running:
            self._source.start(request, [])
        return is_settled

    # Loads.

    def _start_load(self, plan: Plan, request: Request, offer: Offer, hit_tokens: int) -> bool:
        """Let a request stand aside with its blocks, or reject it; False if there is no room now."""
        if not self.manager.can_read(request.blocks, hit_tokens):
            plan.must_replan = True
            return False
        loads = self.manager.plan_load(request.blocks, offer.cached_tokens, offer.num_tokens)
        if self._has_room(request, loads):
            self.waiting.pop()
            self.manager.start_load(request.blocks, loads)
            request.computed = offer.num_tokens
            if request.first_scheduled_s is None:
                request.cached_tokens, request.loaded_tokens = hit_tokens, offer.num_tokens - hit_tokens
            self.held[request] = False
            self._source.start(request, loads)
            return True
        return self._reject_head(plan)

    def _has_room(self, request: Request, loads: list[Load]) -> bool:
        """A load holds its blocks without getting anywhere, so those that others still need are left to them."""
        manager = self.manager
        watermark = manager.watermark_blocks if self.running else 0
        if self.settings.reserve_full_isl and not manager.has_room_for_load(loads, watermark, self._whole(request)):
            return False
        begun = (*self.prefilling.values(), *self.held)
        needed = sum(manager.num_blocks_to_the_end(other.blocks, self._whole(other)) for other in begun)
        return manager.has_room_for_load(loads, watermark + needed)

    # Those whose load has ended.

    def _admit_held(self, plan: Plan, threshold: int, now_s: float) -> bool:
        """Admit all whose contents are there, in order; False if there is no room for one."""
        for request in self._held_in_order():
            if not self._may_admit(plan):
                return False
            if self.held[request] and not self._admit_loaded(plan, request, threshold, now_s):
                if not self.running and all(self.held.values()):
                    self._reject_held(plan, request)
                return False
        return True

    def _held_in_order(self) -> list[Request]:
        """First come, first served, as they came out of the waiting queue; or by priority."""
        return sorted(self.held) if self.settings.scheduling_policy == "priority" else list(self.held)

    def _admit_loaded(self, plan: Plan, request: Request, threshold: int, now_s: float) -> bool:
        if request.computed >= request.blocks.cache_at:
            self.manager.cache(request.blocks, request.computed)
        start = min(request.computed, request.known_tokens - 1)  # something to sample from
        num_new = self._first_chunk(plan, request, start, threshold)
        reserve = self._reserve(request)
        if not num_new or not self.manager.admit_loaded(
            request.blocks, start, start + num_new, reserve_tokens=reserve, alone=not self.running
        ):
            return False
        del self.held[request]
        self._start(request, start, now_s)
        plan.add_chunk(request, num_new)
        return True

    def _reject_held(self, plan: Plan, request: Request) -> None:
        """Nobody runs and nothing is on its way: it would wait for ever."""
        self.manager.free(request.blocks, request.computed)
        del self.held[request]
        plan.rejected.append(request)

    def _num_equal_steps(self, plan: Plan) -> int:
        """As without loads; who has his contents and no room is looked at again in each step."""
        return 1 if any(self.held.values()) else super()._num_equal_steps(plan)


class LendingScheduler(ConnectedScheduler):
    """Decides for one replica whose requests are continued by others, which read their blocks."""

    def __init__(self, manager: KVCacheManager, settings: SchedulerSettings, reaches: tuple[Reach, ...] = ()) -> None:
        super().__init__(manager, settings, reaches)
        self._read: list[Request] = []

    def _give_back(self, request: Request) -> None:
        """What a later token needs stays held until it has been read."""
        self.manager.keep_needed(request.blocks, request.computed)
        self.held[request] = False

    def loaded(self, request: Request) -> None:
        """What was in a finished request's blocks is where it is needed: the next step can have them."""
        super().loaded(request)
        self._read.append(request)

    def schedule(self, now_s: float) -> Batch | None:
        """As without, after taking back what has been read since: it stays to be hit."""
        for request in self._read:
            del self.held[request]
            self.manager.free(request.blocks, request.computed)
        self._read.clear()
        return super().schedule(now_s)
