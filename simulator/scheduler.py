"""Continuous batching, step for step as vLLM 0.32 schedules.

`schedule` decides what the next step computes, `complete` settles what it has computed. A step
touches only requests that have something to decide: those in their prompt, those that arrive or
end, and decodes whose block tables change. All other decodes advance with the step counter.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcache.manager import KVCacheManager
from simulator.batch import Batch
from simulator.contexts import DecodeContexts, Reach
from simulator.request import Request
from simulator.waiting import FcfsQueue, PriorityQueue, WaitingQueue

__all__ = ["Plan", "Scheduler", "SchedulerSettings"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a server's flags say about scheduling; the defaults are vLLM's for a large GPU."""

    max_model_len: int
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """Tokens that one prompt may take of a step while others wait or run; 0: no limit."""
    scheduling_policy: str = "fcfs"
    """"fcfs" or "priority"."""
    reserve_full_isl: bool = True
    """Admit a request only if all of its known tokens would fit now."""
    state_block: int | None = None
    """Tokens between cached Mamba states: prompt chunks end there. None: no layer caches states."""


@dataclass(slots=True)
class Plan:
    """What was decided for one step."""

    chunks: list[tuple[Request, int]] = field(default_factory=list)
    """Requests in their prompt, in order, with the tokens that they compute."""
    chunk_tokens: int = 0
    preempted: list[Request] = field(default_factory=list)
    finishing: list[Request] = field(default_factory=list)
    """Decodes that compute their last token."""
    stalled: list[Request] = field(default_factory=list)
    """Decodes that get no token in this step."""
    last_order: int | None = None
    """Running requests behind this order get nothing, because one before them ended the round."""
    rejected: list[Request] = field(default_factory=list)
    """Requests that could not be admitted though nothing else holds blocks."""
    must_replan: bool = False
    """The next step can differ though nothing is due."""


class Scheduler:
    """Decides for one replica which requests compute how many tokens in each step."""

    def __init__(self, manager: KVCacheManager, settings: SchedulerSettings, reaches: tuple[Reach, ...] = ()) -> None:
        self.manager = manager
        self.settings = settings
        self.waiting: WaitingQueue = PriorityQueue() if settings.scheduling_policy == "priority" else FcfsQueue()
        self.running: dict[int, Request] = {}
        """By order of admission, which is the order of service."""
        self.step = 0
        self.plan = Plan()
        self._next_order = 0
        self._prefilling: dict[int, Request] = {}
        self._decode_orders: list[int] = []
        self._due: defaultdict[int, list[Request]] = defaultdict(list)
        self._contexts = DecodeContexts(reaches)
        threshold = settings.long_prefill_token_threshold
        self._max_chunk = min(threshold or settings.max_num_batched_tokens, settings.max_num_batched_tokens)

    def add(self, request: Request) -> None:
        """A request has arrived."""
        self.waiting.add(request)

    # Deciding.

    def schedule(self, now_s: float) -> Batch | None:
        """What the next step computes; None if no request is there."""
        self.plan = plan = Plan()
        if not self.running and not self.waiting:
            return None
        self.manager.new_step()
        num_eligible = len(self.running) + len(self.waiting)
        threshold = self.settings.long_prefill_token_threshold if num_eligible > 1 else 0
        self._extend_running(plan, threshold)
        self._find_stalled(plan)
        if not plan.preempted:
            self._admit_waiting(plan, threshold, now_s)
        return self._batch(plan)

    def _extend_running(self, plan: Plan, threshold: int) -> None:
        # A request that was put off or preempted may have left an entry behind, so each counts once.
        due = {r.order: r for r in self._due.pop(self.step, ()) if r.is_decoding and r.due_step == self.step}
        work = [*due.values(), *self._prefilling.values()]
        if len(work) > 1:
            work.sort(key=lambda request: request.order)
        budget = self.settings.max_num_batched_tokens
        for request in work:
            if not request.is_running:
                continue  # preempted a moment ago
            left = budget - plan.chunk_tokens - bisect_left(self._decode_orders, request.order)
            if left <= 0:
                return
            if request.is_decoding:
                self._extend_decode(plan, request)
            else:
                self._extend_prefill(plan, request, left, threshold)
            if plan.last_order is not None:
                return

    def _extend_decode(self, plan: Plan, request: Request) -> None:
        computed = self.step + request.origin
        event = self.manager.extend_by_one(request.blocks, computed, computed + 1)
        while not event:
            if not self._preempt_for(plan, request):
                return
            event = self.manager.extend_by_one(request.blocks, computed, computed + 1)
        if request.finish_step == self.step:
            plan.finishing.append(request)
        else:
            self._set_due(request, event)

    def _extend_prefill(self, plan: Plan, request: Request, left: int, threshold: int) -> None:
        start = request.computed
        num_new = request.known_tokens - start
        if 0 < threshold < num_new:
            num_new = threshold
        num_new = min(num_new, left, self.settings.max_model_len - start - 1)
        num_new = self._end_at_state(request, start, num_new)
        if not num_new:
            return
        while not self.manager.extend(request.blocks, start, start + num_new):
            if not self._preempt_for(plan, request):
                return
        self.manager.cache(request.blocks, start + num_new)
        self._plan_chunk(plan, request, num_new)

    def _preempt_for(self, plan: Plan, request: Request) -> bool:
        """Preempt somebody to make room for a running request; False if it had to be the request itself."""
        victim = self._victim()
        self._preempt(plan, victim, serving=request)
        if victim is not request:
            return True
        plan.last_order = request.order
        return False

    def _plan_chunk(self, plan: Plan, request: Request, num_new: int) -> None:
        plan.chunks.append((request, num_new))
        plan.chunk_tokens += num_new

    def _victim(self) -> Request:
        if self.settings.scheduling_policy == "priority":
            return max(self.running.values(), key=lambda request: (request.priority, request.arrival_s))
        return next(reversed(self.running.values()))

    def _preempt(self, plan: Plan, request: Request, serving: Request) -> None:
        if request.is_decoding:
            computed = self.step + request.origin
            was_served = request.order < serving.order  # in this step already
            self.manager.free(request.blocks, computed + was_served)
            request.known_tokens = computed + 1
            self._stop_decoding(request)
        else:
            num_new = self._take_back_chunk(plan, request)
            self.manager.free(request.blocks, request.computed + num_new)
            del self._prefilling[request.order]
        if request in plan.finishing:
            plan.finishing.remove(request)
        del self.running[request.order]
        request.is_running = False
        request.computed = 0
        request.num_preemptions += 1
        plan.preempted.append(request)
        self.waiting.put_back(request)

    def _take_back_chunk(self, plan: Plan, request: Request) -> int:
        """Tokens that a request in its prompt had got in this step."""
        for chunk in plan.chunks:
            if chunk[0] is request:
                plan.chunks.remove(chunk)
                plan.chunk_tokens -= chunk[1]
                return chunk[1]
        return 0

    def _find_stalled(self, plan: Plan) -> None:
        """The decodes that the token budget does not reach, or that stand behind the end of the round."""
        if (
            plan.last_order is None
            and plan.chunk_tokens + len(self._decode_orders) <= self.settings.max_num_batched_tokens
        ):
            return
        left = self.settings.max_num_batched_tokens
        chunk_of = {request.order: num_new for request, num_new in plan.chunks}
        for order, request in self.running.items():
            if left <= 0 or (plan.last_order is not None and order > plan.last_order):
                if request.is_decoding:
                    plan.stalled.append(request)
                    self._contexts.remove(request.origin, self.step)
            elif request.is_decoding:
                left -= 1
            else:
                left -= chunk_of.get(order, 0)

    def _admit_waiting(self, plan: Plan, threshold: int, now_s: float) -> None:
        num_decodes = len(self._decode_orders) - len(plan.stalled)
        left = self.settings.max_num_batched_tokens - plan.chunk_tokens - num_decodes
        while left > 0 and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting.head()
            hit_tokens = self.manager.find_hit(request.blocks, request.known_tokens)
            num_new = request.known_tokens - hit_tokens
            if 0 < threshold < num_new:
                num_new = threshold
            num_new = self._end_at_state(request, hit_tokens, min(num_new, left))
            if not num_new or not self._admit(request, hit_tokens, num_new):
                if self.running or not self.manager.can_read(request.blocks, hit_tokens):
                    plan.must_replan = not self.manager.can_read(request.blocks, hit_tokens)
                    return
                plan.rejected.append(self.waiting.pop())
                continue
            self.waiting.pop()
            self._start(request, hit_tokens, now_s)
            self._plan_chunk(plan, request, num_new)
            left -= num_new

    def _admit(self, request: Request, hit_tokens: int, num_new: int) -> bool:
        reserve = min(request.known_tokens, self.settings.max_model_len) if self.settings.reserve_full_isl else 0
        return self.manager.admit(
            request.blocks, hit_tokens, hit_tokens + num_new, reserve_tokens=reserve, alone=not self.running
        )

    def _start(self, request: Request, hit_tokens: int, now_s: float) -> None:
        if request.first_scheduled_s is None:
            request.first_scheduled_s = now_s
            request.cached_tokens = hit_tokens
        request.order = self._next_order
        self._next_order += 1
        request.is_running = True
        request.computed = hit_tokens
        self.running[request.order] = request
        self._prefilling[request.order] = request

    def _end_at_state(self, request: Request, start: int, num_new: int) -> int:
        block = self.settings.state_block
        if block is None:
            return num_new
        return chunk_for_states(request, start, num_new, block, self._max_chunk)

    def _batch(self, plan: Plan) -> Batch:
        num_decodes = len(self._decode_orders) - len(plan.stalled)
        contexts = self._contexts.totals(self.step)
        return Batch(
            prefill_chunks=tuple((num_new, request.computed) for request, num_new in plan.chunks),
            num_decodes=num_decodes,
            decode_context_tokens=contexts.tokens,
            decode_window_tokens=contexts.window_tokens,
            decode_window_growth=contexts.window_growth,
            num_steps=self._num_equal_steps(plan),
        )

    def _num_equal_steps(self, plan: Plan) -> int:
        """For how many steps nothing can change unless somebody arrives."""
        if self._prefilling or plan.finishing or plan.stalled or plan.preempted or plan.must_replan or not self._due:
            return 1
        return max(1, min(*self._due, self._contexts.next_change) - self.step)

    # Settling.

    def complete(self, batch: Batch, steps_done: int, now_s: float) -> list[Request]:
        """The first `steps_done` steps of the batch are computed; gives back the requests that ended, in order."""
        plan = self.plan
        self._contexts.advance(self.step, steps_done)
        self.step += steps_done
        for request in plan.stalled:
            self._put_off(request)
        ended = plan.finishing
        for request in ended:
            self._stop_decoding(request)
        for request, num_new in plan.chunks:
            if request.is_running and self._settle_chunk(request, num_new, now_s):
                ended.append(request)
        if len(ended) > 1:
            ended.sort(key=lambda request: request.order)
        for request in ended:
            request.finish_s = now_s
            request.is_running = False
            del self.running[request.order]
            self.manager.free(request.blocks, request.max_tokens - 1)
        return ended

    def _settle_chunk(self, request: Request, num_new: int, now_s: float) -> bool:
        """Advance a request in its prompt; True if its last token came with that."""
        request.computed += num_new
        if request.computed < request.known_tokens:
            return False
        del self._prefilling[request.order]
        request.known_tokens += 1
        if request.first_token_s is None:
            request.first_token_s = now_s
        if request.known_tokens == request.max_tokens:
            return True
        self._start_decoding(request)
        return False

    def _start_decoding(self, request: Request) -> None:
        request.is_decoding = True
        request.origin = request.computed - self.step
        request.finish_step = request.max_tokens - 2 - request.origin
        insort(self._decode_orders, request.order)
        self._contexts.add(request.origin, self.step)
        self._set_due(request, self.manager.next_event(request.blocks))

    def _stop_decoding(self, request: Request) -> None:
        request.is_decoding = False
        del self._decode_orders[bisect_left(self._decode_orders, request.order)]
        self._contexts.remove(request.origin, self.step)

    def _set_due(self, request: Request, event: int) -> None:
        """Come back to a decode when so many of its tokens are computed, or at its last step."""
        due_step = event - request.origin
        if due_step > request.finish_step:
            due_step = request.finish_step
        elif due_step < self.step:
            due_step = self.step
        request.due_step = due_step
        self._due[due_step].append(request)

    def _put_off(self, request: Request) -> None:
        """A decode missed the last step: everything that was due comes one step later."""
        request.origin -= 1
        self._contexts.add(request.origin, self.step)
        request.finish_step += 1
        request.due_step += 1
        self._due[request.due_step].append(request)

    # Looking in.

    def contexts_after_step(self) -> Iterator[tuple[Request, int]]:
        """(running request, tokens computed once the planned step is) for all that hold blocks."""
        chunk_of = {request.order: num_new for request, num_new in self.plan.chunks}
        stalled = {request.order for request in self.plan.stalled}
        for order, request in self.running.items():
            if request.is_decoding:
                yield request, self.step + request.origin + (order not in stalled)
            else:
                yield request, request.computed + chunk_of.get(order, 0)

    def scheduled_tokens(self) -> Iterator[tuple[str, int]]:
        """(request id, tokens) of all requests in the planned step, in order of service."""
        plan = self.plan
        chunk_of = {request.order: num_new for request, num_new in plan.chunks}
        stalled = {request.order for request in plan.stalled}
        for order, request in self.running.items():
            if order in chunk_of:
                yield request.request_id, chunk_of[order]
            elif request.is_decoding and order not in stalled:
                yield request.request_id, 1


def chunk_for_states(request: Request, start: int, num_new: int, block: int, max_chunk: int) -> int:
    """Cut a prompt chunk so that it ends where a Mamba state is to be kept; 0 if it had better wait.

    States are written at the ends of chunks, so chunks end at block boundaries, at the last boundary
    that another request could resume from, and where requests were seen to part.
    """
    known = request.known_tokens
    prefill_end = max(request.prompt_tokens, known - 1)
    if start >= prefill_end:
        return num_new
    end = start + num_new
    if end < prefill_end:
        aligned_end = end // block * block
        # A block too wide for one step is crossed in several, without a state to keep in between.
        if aligned_end > start or block <= max_chunk:
            end = aligned_end
    junction = request.blocks.junction
    stops = [(known - 1) // block * block]
    if start % block:
        stops.append((start // block + 1) * block)
    if start < junction < end:
        stops.append(start + (junction - start) // block * block)
    end = min((stop for stop in stops if start < stop < end), default=end)
    return max(end - start, 0)
