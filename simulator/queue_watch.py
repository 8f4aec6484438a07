"""Why a request waits: after each planned step the cause follows from the plan, without asking the pool again."""

from dataclasses import dataclass, replace

from kvcache.manager import RequestBlocks
from kvcache.watching import Shortage
from simulator.batch import Batch
from simulator.request import Request
from simulator.scheduler import Scheduler
from simulator.story import Wait

__all__ = ["QueueWatch", "Refusal", "queue_since"]

SHORTEST_S = 1e-9
"""Of a wait: what is shorter is how a sum of times was rounded."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that got no blocks."""

    name: str
    blocks: RequestBlocks
    shortage: Shortage


class QueueWatch:
    """One stay in the waiting queue: a wait for each cause, in order."""

    def __init__(self, request: Request, since_s: float) -> None:
        self.waits: list[Wait] = []
        self._request = request
        self._now = Wait(since_s, since_s, "step_running", request.request_id, 0)
        self._is_open = True

    def planned(
        self, now_s: float, scheduler: Scheduler, batch: Batch, refused: Refusal | None, short: Refusal | None
    ) -> None:
        """A step was planned without the request."""
        cause = self._cause(now_s, scheduler, batch, refused, short)
        before = self._now
        if (cause.kind, cause.head, cause.victim) == (before.kind, before.head, before.victim):
            self._now = _least_short(before, cause)
            return
        self._end(now_s)
        ahead = next(nth for nth, other in enumerate(scheduler.waiting) if other is self._request)
        self._now = replace(cause, num_ahead=ahead)

    def close(self, now_s: float) -> None:
        """The request is admitted, or ends."""
        if self._is_open:
            self._end(now_s)
            self._is_open = False

    def _end(self, now_s: float) -> None:
        if now_s - self._now.start_s > SHORTEST_S:
            self.waits.append(replace(self._now, end_s=now_s))

    def _cause(
        self, now_s: float, scheduler: Scheduler, batch: Batch, refused: Refusal | None, short: Refusal | None
    ) -> Wait:
        """What ended admissions in the step that was just planned."""
        plan, settings, head = scheduler.plan, scheduler.settings, scheduler.waiting.head()
        cause = Wait(now_s, now_s, "state_boundary", head.request_id, 0)
        if plan.preempted:
            by = None if short is None else short.name
            return replace(cause, kind="preemption", by=by, victim=plan.preempted[-1].request_id)
        if refused is not None and refused.blocks is head.blocks:
            shortage = refused.shortage
            if shortage.awaits_state:
                return replace(cause, kind="state_being_written")
            return replace(
                cause,
                kind="blocks",
                needed_blocks=shortage.needed_blocks,
                free_blocks=shortage.free_blocks,
                watermark_blocks=shortage.watermark_blocks,
                reserve_tokens=shortage.reserve_tokens,
            )
        if len(scheduler.running) >= settings.max_num_seqs:
            return replace(cause, kind="max_num_seqs", limit=settings.max_num_seqs)
        if batch.num_tokens >= settings.max_num_batched_tokens:
            return replace(cause, kind="token_budget", limit=settings.max_num_batched_tokens)
        return cause


def queue_since(request: Request, delivered_s: float) -> QueueWatch:
    """The first stay of a request that was delivered then; the router of a fleet may have let it wait before."""
    arrival_s = request.arrival_s
    if delivered_s - arrival_s <= SHORTEST_S:
        return QueueWatch(request, arrival_s)
    queue = QueueWatch(request, delivered_s)
    queue.waits.append(Wait(arrival_s, delivered_s, "router", request.request_id, 0))
    return queue


def _least_short(before: Wait, now: Wait) -> Wait:
    """Of two waits for the same cause, the first with the numbers of the one that came closest to its end."""
    if before.kind != "blocks" or _missing(before) <= _missing(now):
        return before
    return replace(now, start_s=before.start_s, num_ahead=before.num_ahead)


def _missing(wait: Wait) -> int:
    return (wait.needed_blocks or 0) + (wait.watermark_blocks or 0) - (wait.free_blocks or 0)
