"""Continuous batching, step for step as vLLM 0.32 schedules.

`schedule` decides what the next step computes, `complete` settles what it has computed. A step
touches only requests that have something to decide: those in their prompt, those that arrive or
end, and decodes whose block tables change. All other decodes advance with the step counter.
"""

from collections import deque
from collections.abc import Iterator
from typing import ClassVar

from kvcache.manager import KVCacheManager
from simulator.batch import Batch
from simulator.contexts import Reach
from simulator.decodes import ORDER, Decodes
from simulator.plan import NO_ORDER, Plan, SchedulerSettings
from simulator.request import Request
from simulator.state_chunks import chunk_for_states
from simulator.waiting import FcfsQueue, PriorityQueue, WaitingQueue

__all__ = ["StepScheduler"]

MOST_PREEMPTIONS_IN_VAIN = 10_000
"""A server whose pool is a little too small may preempt the same requests for ever; here one is rejected then."""


class StepScheduler:
    """Decides for one replica which requests compute how many tokens in each step.

    Progress is counted when a step is planned, as a server does, so the next one can be planned before it has run
    (asynchronous scheduling). What it computed is settled by `complete`, in the same order.
    """

    has_source: ClassVar[bool] = False
    """Whether some keys and values come from elsewhere: see `loading`."""

    def __init__(self, manager: KVCacheManager, settings: SchedulerSettings, reaches: tuple[Reach, ...] = ()) -> None:
        self.manager = manager
        self.settings = settings
        self.reaches = reaches
        """How far back the layers read, where not everything."""
        self.waiting: WaitingQueue = PriorityQueue() if settings.scheduling_policy == "priority" else FcfsQueue()
        self.running: dict[int, Request] = {}
        """By order of admission, which is the order of service."""
        self.held: dict[Request, bool] = {}
        """Requests that hold blocks and do not run, and whether what they wait for is there: see `loading`."""
        self.step = 0
        """Steps planned."""
        self.num_news = 0
        """How often somebody arrived, or something that he waits for: a plan made before that may be another now."""
        self.plan = Plan()
        """The step that was planned last."""
        self.in_flight: deque[Plan] = deque()
        """Steps planned and not completed, the plan included."""
        self._next_order = 0
        self._preemptions_in_vain = 0
        """Preemptions since a request last ended."""
        self.prefilling: dict[int, Request] = {}
        """Those of the running ones that are in their prompt."""
        self._decodes = Decodes(reaches)
        # With asynchronous scheduling the last token of a decode is not settled when the next is planned.
        self._lag = int(settings.async_scheduling)
        self._max_chunk = settings.max_chunk

    def add(self, request: Request) -> None:
        """A request has arrived."""
        self.num_news += 1
        self.waiting.add(request)

    def loaded(self, request: Request) -> None:
        """What is in a held request's blocks is there now. One that has gone meanwhile is none of ours."""
        if request in self.held:
            self.num_news += 1
            self.held[request] = True

    # Deciding.

    def schedule(self, now_s: float) -> Batch | None:
        """What the next step computes; None if no request is there."""
        plan = Plan()
        plan.must_replan = bool(self.plan.stalled)  # their tokens are late, so this step is not like the next ones
        self.plan = plan
        if not self.running and not self.waiting and not self.held:
            return None
        self.manager.new_step()
        threshold = self.settings.long_prefill_token_threshold
        if threshold and len(self.running) + len(self.waiting) + self._num_delayed() == 1:
            threshold = 0  # nobody else would profit
        self._extend_running(plan, threshold)
        self._find_stalled(plan)
        if not plan.preempted:
            self._admit_waiting(plan, threshold, now_s)
        if not (self.running or plan.rejected or plan.preempted):
            return None  # whoever is here waits for contents of blocks
        batch = self._batch(plan)
        self._advance(plan)
        self.in_flight.append(plan)
        return batch

    def _num_delayed(self) -> int:
        """Requests that neither run nor wait for a place."""
        return 0

    def _extend_running(self, plan: Plan, threshold: int) -> None:
        work = self._decodes.take_due(self.step)
        if self.prefilling:
            work += self.prefilling.values()
            work.sort(key=ORDER)
        budget = self.settings.max_num_batched_tokens
        for request in work:
            if not request.is_running:
                continue  # preempted a moment ago
            left = budget - plan.chunk_tokens - self._decodes.num_before(request.order)
            if left <= 0:
                return
            if request.is_decoding:
                self._extend_decode(plan, request)
            else:
                self._extend_prefill(plan, request, left, threshold)
            if plan.last_order != NO_ORDER:
                return

    def _extend_decode(self, plan: Plan, request: Request) -> None:
        processed = computed = self.step + request.origin
        cacheable = computed + 1
        if self._lag:
            processed -= self._num_in_flight(request)
            cacheable -= self._cache_lag(request)
        extend = self.manager.extend_by_one
        while not extend(request.blocks, processed, computed + 1, cacheable):
            if not self._preempt_for(plan, request):
                return
        if self._lag and request.chunk_step == self.step - 1:
            self.manager.cache(request.blocks, cacheable)  # its last state still counts as being written
        self._come_back(plan, request)

    def _come_back(self, plan: Plan, request: Request) -> None:
        """Look at a decode again when its block tables change, unless this was its last token."""
        if request.finish_step == self.step:
            plan.finishing.append(request)
        else:
            due_step = self.manager.next_event(request.blocks, self._lag) - request.origin
            self._decodes.set_due(request, max(due_step, self.step + 1))

    def _extend_prefill(self, plan: Plan, request: Request, left: int, threshold: int) -> None:
        start = request.computed
        num_new = request.known_tokens - start
        if 0 < threshold < num_new:
            num_new = threshold
        num_new = min(num_new, left, self.settings.max_model_len - start - 1)
        num_new = self._end_at_state(request, start, num_new)
        if not num_new:
            return
        processed = start - self._num_in_flight(request)
        while not self.manager.extend(request.blocks, processed, start + num_new):
            if not self._preempt_for(plan, request):
                return
        self.manager.cache(request.blocks, start + num_new)
        plan.add_chunk(request, num_new)

    def _num_in_flight(self, request: Request) -> int:
        """Tokens of a running request that the step before this one computes, if that is not settled yet."""
        before = self.step - 1
        if not self._lag or request.missed_step == before:
            return 0
        if request.chunk_step == before:
            return request.chunk_tokens
        return 1 if request.is_decoding else 0

    def _cache_lag(self, request: Request) -> int:
        """By how many tokens caching is behind a decode: only settled tokens are hashed."""
        return 0 if request.missed_step == self.step - 1 else self._lag

    def _end_at_state(self, request: Request, start: int, num_new: int) -> int:
        block = self.settings.state_block
        return num_new if block is None else chunk_for_states(request, start, num_new, block, self._max_chunk)

    # Preempting.

    def _preempt_for(self, plan: Plan, request: Request) -> bool:
        """Preempt somebody to make room for a running request; False if it had to be the request itself."""
        victim = self._victim()
        self._preempt(plan, victim, serving=request)
        if victim is not request:
            return True
        plan.last_order = request.order
        return False

    def _victim(self) -> Request:
        if self.settings.scheduling_policy == "priority":
            return max(self.running.values(), key=lambda request: (request.priority, request.arrival_s))
        return next(reversed(self.running.values()))

    def _preempt(self, plan: Plan, request: Request, serving: Request) -> None:
        is_ending = False
        if request.is_decoding:
            computed = self.step + request.origin
            was_served = request.order < serving.order  # in this step already
            is_fresh = self._lag and request.chunk_step == self.step - 1
            num_cached = computed if is_fresh else computed - self._cache_lag(request) + was_served
            request.known_tokens = computed + 1
            self._decodes.remove(request, self.step)
            if request in plan.finishing:
                plan.finishing.remove(request)
        elif request.order in self.prefilling:
            num_cached = request.computed + plan.take_back_chunk(request)
            del self.prefilling[request.order]
        else:  # its last token is still being computed, and will end it
            is_ending = True
            num_cached = request.computed - (request.chunk_step != self.step - 1)
        self.manager.free(request.blocks, num_cached)
        del self.running[request.order]
        request.is_running = False
        request.computed = 0
        request.num_preemptions += 1
        plan.preempted.append(request)
        self._preemptions_in_vain += 1
        if self._preemptions_in_vain > MOST_PREEMPTIONS_IN_VAIN and not is_ending:
            plan.rejected.append(request)
        else:
            self.waiting.put_back(request)

    def _find_stalled(self, plan: Plan) -> None:
        """The decodes that the token budget does not reach, or that stand behind the end of the round."""
        left = self.settings.max_num_batched_tokens
        if plan.last_order == NO_ORDER and plan.chunk_tokens + len(self._decodes) <= left:
            return
        chunk_of = {request.order: num_new for request, num_new in plan.chunks}
        for order, request in self.running.items():
            if not request.is_decoding:
                left -= chunk_of.get(order, 0)
            elif left > 0 and order <= plan.last_order:
                left -= 1
            else:
                plan.stalled.append(request)

    # Admitting.

    def _admit_waiting(self, plan: Plan, threshold: int, now_s: float) -> None:
        while self._may_admit(plan) and self.waiting:
            request = self.waiting.head()
            hit_tokens = self.manager.find_hit(request.blocks, request.known_tokens)
            if not self._admit_head(plan, hit_tokens, threshold, now_s):
                return

    def _may_admit(self, plan: Plan) -> bool:
        return self._tokens_left(plan) > 0 and len(self.running) < self.settings.max_num_seqs

    def _tokens_left(self, plan: Plan) -> int:
        """Of the token budget."""
        num_decodes = len(self._decodes) - len(plan.stalled)
        return self.settings.max_num_batched_tokens - plan.chunk_tokens - num_decodes

    def _first_chunk(self, plan: Plan, request: Request, start: int, threshold: int) -> int:
        """Tokens that a request computes in this step, of which `start` are there, if it is admitted."""
        num_new = request.known_tokens - start
        if 0 < threshold < num_new:
            num_new = threshold
        return self._end_at_state(request, start, min(num_new, self._tokens_left(plan)))

    def _admit_head(self, plan: Plan, hit_tokens: int, threshold: int, now_s: float) -> bool:
        """Admit or reject who waits first; False if nobody else can be admitted in this step."""
        request = self.waiting.head()
        num_new = self._first_chunk(plan, request, hit_tokens, threshold)
        if num_new and self._admit(request, hit_tokens, num_new):
            self.waiting.pop()
            if request.first_scheduled_s is None:
                request.cached_tokens = hit_tokens
            self._start(request, hit_tokens, now_s)
            plan.add_chunk(request, num_new)
            return True
        if not self.manager.can_read(request.blocks, hit_tokens):
            plan.must_replan = True
            return False
        return self._reject_head(plan)

    def _reject_head(self, plan: Plan) -> bool:
        """Reject who has no room and waits first, if nobody will ever make some; False: he waits on."""
        if self.running or self.held:
            return False
        plan.rejected.append(self.waiting.pop())
        return True

    def _admit(self, request: Request, hit_tokens: int, num_new: int) -> bool:
        reserve = self._reserve(request)
        return self.manager.admit(
            request.blocks, hit_tokens, hit_tokens + num_new, reserve_tokens=reserve, alone=not self.running
        )

    def _reserve(self, request: Request) -> int:
        """Tokens for which there must be room when it is admitted, though it computes only some of them then."""
        return self._whole(request) if self.settings.reserve_full_isl else 0

    def _whole(self, request: Request) -> int:
        """Tokens of a request that are known."""
        return min(request.known_tokens, self.settings.max_model_len)

    def _start(self, request: Request, num_computed: int, now_s: float) -> None:
        if request.first_scheduled_s is None:
            request.first_scheduled_s = now_s
        request.order = self._next_order
        self._next_order += 1
        request.is_running = True
        request.computed = num_computed
        self.running[request.order] = request
        self.prefilling[request.order] = request

    # Counting progress.

    def _batch(self, plan: Plan) -> Batch:
        for request in plan.stalled:
            self._decodes.contexts.remove(request.origin, self.step)
        contexts = self._decodes.contexts.totals(self.step)
        return Batch(
            tuple((num_new, request.computed) for request, num_new in plan.chunks),
            len(self._decodes) - len(plan.stalled),
            contexts.tokens,
            contexts.window_tokens,
            contexts.window_growth,
            self._num_equal_steps(plan),
        )

    def _num_equal_steps(self, plan: Plan) -> int:
        """For how many steps the batch stays as it is; who knows no better plans each step anew."""
        return 1

    def _advance(self, plan: Plan) -> None:
        """Count the planned step's tokens as computed."""
        self._decodes.contexts.advance(self.step, 1)
        self.step += 1
        for request in plan.stalled:
            self._decodes.put_off(request, self.step)
        self._leave_decoding(plan)
        for request, num_new in plan.chunks:
            request.computed += num_new
            request.chunk_step, request.chunk_tokens = self.step - 1, num_new
            if request.computed == request.known_tokens:
                del self.prefilling[request.order]
                plan.prompt_done.append(request)
                if request.known_tokens + 1 == request.max_tokens:
                    plan.finishing.append(request)
                else:
                    self._start_decoding(request)

    def _leave_decoding(self, plan: Plan) -> None:
        """The requests whose last token is being computed decode no more; they hold their blocks until it is."""
        for request in plan.finishing:
            request.computed = self.step + request.origin
            self._decodes.remove(request, self.step)

    def _start_decoding(self, request: Request) -> None:
        self._decodes.add(request, self.step)
        # With its last chunk in flight it is looked at in any case.
        due_step = self.step if self._lag else self.manager.next_event(request.blocks) - request.origin
        self._decodes.set_due(request, max(due_step, self.step))

    # Settling.

    def complete(self, now_s: float) -> list[Request]:
        """The batch planned first of those in flight has run; gives back the requests that ended, in order."""
        plan = self.in_flight.popleft()
        for request in plan.prompt_done:
            if request.first_token_s is None:
                request.first_token_s = now_s
        if self._lag:
            self._cache_settled()
        ended = plan.finishing
        if ended:
            self._preemptions_in_vain = 0
        if len(ended) > 1:
            ended.sort(key=ORDER)
        for request in ended:
            request.finish_s = now_s
            if request.is_running:
                request.is_running = False
                del self.running[request.order]
                if self._lag:
                    self.manager.cache(request.blocks, request.max_tokens - 1)
                self._give_back(request)
            else:  # preempted while its last token was being computed
                self.waiting.remove(request)
        return ended

    def _give_back(self, request: Request) -> None:
        """A request has finished, so nobody needs its blocks."""
        self.manager.free(request.blocks, request.max_tokens - 1)

    def _cache_settled(self) -> None:
        """Hash what decodes that miss the planned step have settled now; all others do so when they are planned."""
        for request in self.plan.stalled:
            if request.is_decoding:
                self.manager.cache(request.blocks, self.step + request.origin)

    # Looking in.

    def scheduled_tokens(self) -> Iterator[tuple[str, int]]:
        """(request id, tokens) of all requests in the step planned last, in order of service."""
        return self.plan.tokens(self.running.values())
