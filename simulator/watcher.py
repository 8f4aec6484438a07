"""Watches a replay for one request's sake, and tells its story: an observer of steps and a witness of the manager."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvcache.hit_report import Cut, report_hit
from kvcache.manager import RequestBlocks
from kvcache.managers import SingleTypeManager
from kvcache.watching import Shortage, WatchedManager
from simulator.batch import Batch
from simulator.prefix_history import PrefixHistory
from simulator.queue_watch import QueueWatch, Refusal, queue_since
from simulator.recorder import TOO_LARGE
from simulator.request import Request
from simulator.scheduler import Scheduler
from simulator.story import Admission, Attempt, Cause, Chunk, Decode, HitCut, Moment, Preemption, Story, TypeHit

__all__ = ["Ended", "Watcher"]


class Ended(Exception):  # noqa: N818  no error: it ends the replay
    """The watched request has ended: what comes later does not matter to it."""


class Clock:
    """Gives out moments, and sets their times when they are known.

    What happens while a step is planned happens when that begins. Of a run of equal steps only the
    beginning and the end are known, so what happens within it is spread evenly.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pending: list[Moment] = []
        self._last = Moment(0, 0.0)

    def now(self) -> Moment:
        """The moment of what happens right now."""
        step = self._scheduler.step
        if not self._pending or self._pending[-1].step != step:
            self._pending.append(Moment(step))
        return self._pending[-1]

    def reaches(self, step: int, time_s: float) -> None:
        """Planning `step` begins at this time, or could."""
        num_steps = step - self._last.step
        for moment in self._pending:
            share = (moment.step - self._last.step) / num_steps if num_steps else 1.0
            moment.time_s = self._last.time_s + share * (time_s - self._last.time_s) if share < 1 else time_s
        self._pending.clear()
        self._last = Moment(step, time_s)


@dataclass(slots=True)
class _Attempt:
    """An attempt that goes on."""

    queue: QueueWatch
    admission: Admission | None = None
    chunks: list[Chunk] = field(default_factory=list)
    decodes_since: tuple[float, int] | None = None
    """When it had computed its prompt, and how many tokens these are."""
    num_missed_steps: int = 0
    missed_s: float = 0.0
    preemption: Preemption | None = None

    def closed(self, end_s: float, computed_tokens: int) -> Attempt:
        """The attempt as a fact, once it is over."""
        decode = None
        if self.decodes_since is not None:
            start_s, before = self.decodes_since
            decode = Decode(start_s, max(start_s, end_s), before, computed_tokens, self.num_missed_steps, self.missed_s)
        waits = tuple(self.queue.waits)
        return Attempt(waits, self.admission, tuple(self.chunks), decode, self.preemption)


@dataclass(slots=True)
class _Planned:
    """What a planned batch does for the watched request."""

    step: int
    attempt: _Attempt | None
    chunk: tuple[int, int] | None = None
    """Its tokens, and those computed before."""
    ends_prompt: bool = False
    is_missed: bool = False


class Watcher:
    """Watches one replica; as soon as the request has ended, `Ended` is raised and `story` is complete."""

    def __init__(
        self,
        scheduler: Scheduler,
        manager: WatchedManager,
        like: Request,
        on_progress: Callable[[float, int], None] | None = None,
    ) -> None:
        """`like` is the watched request before it arrives: the first that has its id."""
        self.story: Story | None = None
        self._manager = manager
        self._request_id = like.request_id
        self._request: Request | None = None
        self._on_progress = on_progress
        self._clock = Clock(scheduler)
        self._history = PrefixHistory(manager, like.blocks, like.max_tokens)
        manager.watch(like.blocks, like.max_tokens, self)
        self._names: dict[int, str] = {}
        """By the identity of a request's blocks."""
        self._planned: deque[_Planned] = deque()
        self._over: list[_Attempt] = []
        self._closed: list[tuple[float, int]] = []
        """When each of them ended, with how many computed tokens."""
        self._attempt: _Attempt | None = None
        self._refused: Refusal | None = None
        self._short: Refusal | None = None
        self._lost_tokens = 0
        self._yielded_to: Refusal | None = None
        """For whom the watched request gave back its blocks, if it had to."""
        self._num_ended = 0

    def watch(self, arrivals: Iterator[Request]) -> Iterator[Request]:
        """The same requests."""
        for request in arrivals:
            yield request  # comes back once the request is delivered
            self.arrived(request, request.arrival_s)

    def arrived(self, request: Request, now_s: float) -> None:
        """A request was delivered just now: in a fleet it may have waited for that."""
        self._names[id(request.blocks)] = request.request_id
        self._history.begin(request.blocks)
        if self._request is None and request.request_id == self._request_id:
            self._request = request
            self._history.own = request.blocks
            self._attempt = _Attempt(queue_since(request, now_s))

    def rejected(self, request: Request, reason: str) -> None:
        """A request was turned away at the door."""
        self._num_ended += 1
        if self._request is None and request.request_id == self._request_id:
            self._end(request, "rejected", reason, request.arrival_s)

    # A watcher is a witness of the manager.

    def hashed(self, keys: list[int], by: RequestBlocks) -> None:
        """Watched keys find a block from now on."""
        self._history.hashed(keys, self._names[id(by)], self._clock.now())

    def lost(self, keys: list[int], by: RequestBlocks) -> None:
        """Watched keys find no block any more."""
        self._history.lost(keys, self._names[id(by)], self._clock.now())

    def computed(self, num_tokens: int, by: RequestBlocks) -> None:
        """So many tokens of a request are there at the end of the planned step."""
        self._history.computed(num_tokens, by, self._clock.now())

    def admitting(self, blocks: RequestBlocks, hit_tokens: int) -> None:
        """A request is being admitted; if it is the watched one, the pool says now what it hits."""
        if self._request is not None and blocks is self._request.blocks and self._attempt is not None:
            self._attempt.admission = self._admission(self._request, hit_tokens)
        self._history.admitted(blocks, self._names[id(blocks)], hit_tokens)

    def refused(self, blocks: RequestBlocks, shortage: Shortage) -> None:
        """A waiting request was not admitted."""
        self._refused = Refusal(self._names[id(blocks)], blocks, shortage)

    def ran_short(self, blocks: RequestBlocks, shortage: Shortage) -> None:
        """A running request got no further slots, so somebody will be preempted for it."""
        self._short = Refusal(self._names[id(blocks)], blocks, shortage)

    def freed(self, blocks: RequestBlocks, num_tokens: int) -> None:
        """A request gave back all blocks."""
        self._history.freed(blocks)
        if self._request is not None and blocks is self._request.blocks:
            self._lost_tokens, self._yielded_to = num_tokens, self._short

    def _admission(self, request: Request, hit_tokens: int) -> Admission:
        known, manager = request.known_tokens, self._manager
        report = report_hit(manager, request.blocks, known, self._history.computed_tokens)
        alignment = manager.scheduler_block
        types: tuple[TypeHit, ...] = ()
        cuts: tuple[HitCut, ...] = ()
        if report is not None:
            types = tuple(map(self._type_hit, report.alone))
            cuts = tuple(
                HitCut(self._name(cut), cut.before, cut.after, self._history.cause(cut)) for cut in report.cuts
            )
        most = (known - 1) // alignment * alignment
        return Admission(self._clock.now(), known, hit_tokens, most, alignment, types, cuts)

    def _type_hit(self, cut: Cut) -> TypeHit:
        manager = self._manager.managers[cut.manager]
        cause: Cause | None = self._history.cause(cut)
        return TypeHit(_type_name(manager), tuple(manager.groups), manager.block_size, cut.after, cause)

    def _name(self, cut: Cut) -> str:
        return _type_name(self._manager.managers[cut.manager])

    # And an observer of steps.

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Note what the planned batch means for the watched request."""
        self._clock.reaches(scheduler.step - 1, start_s)
        self._num_ended += len(scheduler.plan.rejected)
        request, planned = self._request, _Planned(scheduler.step - 1, self._attempt)
        self._planned.append(planned)
        if request is not None and self._attempt is not None:
            self._note_plan(request, planned, start_s, scheduler, batch)
        self._refused = self._short = None

    def _note_plan(
        self, request: Request, planned: _Planned, start_s: float, scheduler: Scheduler, batch: Batch
    ) -> None:
        plan = scheduler.plan
        if _is_among(request, plan.rejected):
            self._end(request, "rejected", TOO_LARGE, start_s)
        if _is_among(request, plan.preempted):
            self._note_preemption(request, start_s)
        assert self._attempt is not None
        if request.is_running:
            self._attempt.queue.close(start_s)
        else:
            self._attempt.queue.planned(start_s, scheduler, batch, self._refused, self._short)
        planned.attempt = self._attempt
        planned.is_missed = _is_among(request, plan.stalled)
        planned.ends_prompt = _is_among(request, plan.prompt_done)
        chunks = zip(plan.chunks, batch.prefill_chunks, strict=True)
        planned.chunk = next((chunk for (owner, _), chunk in chunks if owner is request), None)

    def _note_preemption(self, request: Request, now_s: float) -> None:
        assert self._attempt is not None
        assert self._yielded_to is not None
        shortage = self._yielded_to.shortage
        self._attempt.preemption = Preemption(
            when=Moment(self._planned[-1].step, now_s),
            by=self._yielded_to.name,
            needed_blocks=shortage.needed_blocks,
            free_blocks=shortage.free_blocks,
            lost_tokens=self._lost_tokens,
        )
        self._over.append(self._attempt)
        self._closed.append((now_s, self._lost_tokens))
        self._attempt = _Attempt(QueueWatch(request, now_s))

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """Note what the batch did for the watched request."""
        planned = self._planned.popleft()
        self._clock.reaches(self._clock_next(planned, num_steps), end_s)
        self._num_ended += len(ended)
        if self._on_progress is not None:
            self._on_progress(end_s, self._num_ended)
        attempt, request = planned.attempt, self._request
        if attempt is None or request is None:
            return
        if planned.chunk is not None:
            attempt.chunks.append(Chunk(planned.step, start_s, end_s, *planned.chunk))
            if planned.ends_prompt and attempt.preemption is None:
                attempt.decodes_since = (end_s, sum(planned.chunk))
        if planned.is_missed:
            attempt.num_missed_steps += num_steps
            attempt.missed_s += end_s - start_s
        if _is_among(request, ended):
            self._end(request, "finished", None, end_s)

    def _clock_next(self, planned: _Planned, num_steps: int) -> int:
        """The step that is planned next."""
        return (self._planned[-1].step if self._planned else planned.step + num_steps - 1) + 1

    # The end.

    def _end(self, request: Request, status: str, reason: str | None, end_s: float) -> None:
        attempts = [attempt.closed(*end) for attempt, end in zip(self._over, self._closed, strict=True)]
        if self._attempt is not None:
            self._attempt.queue.close(end_s)
            attempts.append(self._attempt.closed(end_s, request.max_tokens - 1))
        self.story = Story(
            request_id=request.request_id,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            attempts=tuple(attempts),
            status=status,
            reason=reason,
            end_s=end_s,
            first_scheduled_s=request.first_scheduled_s,
            first_token_s=request.first_token_s,
            cached_tokens=request.cached_tokens,
            num_preemptions=request.num_preemptions,
        )
        raise Ended


def _is_among(request: Request, requests: list[Request]) -> bool:
    return any(other is request for other in requests)


def _type_name(manager: SingleTypeManager) -> str:
    """An attention type in words; two groups of one type may differ in window, chunk or block size only."""
    spec = manager.spec
    match spec.kind:
        case "sliding":
            return f"sliding window of {getattr(spec, 'window', 0):,}"
        case "chunked":
            return f"chunked attention of {getattr(spec, 'chunk', 0):,}"
        case "mamba":
            return "Mamba states"
        case "mla":
            return "latent attention (MLA)"
    return "full attention"
