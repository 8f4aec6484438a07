"""Rows of what happened: one per request that ended, one per batch. No arithmetic beyond what a row needs.

Rows are kept as numbers in chunks, so that a run of a million requests stays small; nothing is
recorded per token. Where the pool's bytes are is many columns, so it is sampled.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import nan
from typing import NamedTuple

import numpy as np

from simulator.batch import Batch
from simulator.pool_bytes import BYTE_COLUMNS, PoolBytes
from simulator.request import Request
from simulator.scheduler import Plan, Scheduler
from simulator.table import Columns

__all__ = ["BATCHES_PER_SAMPLE", "TOO_LARGE", "Recorder", "Rows"]

CHUNK_ROWS = 1 << 15
BATCHES_PER_SAMPLE = 64
STEPS_PER_SAMPLE = 256
"""The memory ledger is written down after so many batches or steps, whichever comes first."""

REQUEST_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
REQUEST_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "num_preemptions", "priority")
REQUEST_NAMES = ("request_id", "session", "status", "reason")
STEP_TIMES = ("start_s", "end_s")
STEP_COUNTS = (
    "step",
    "num_steps",
    "prefill_tokens",
    "num_prefills",
    "num_decodes",
    "running",
    "waiting",
    "num_preempted",
    "held_blocks",
    "cached_blocks",
    "free_blocks",
    "evictions",
)

TOO_LARGE = "its tokens need more blocks than the pool has"
"""Why the scheduler turns a request away."""
NO_BYTES = (nan,) * len(BYTE_COLUMNS)


class Rows:
    """Rows of numbers: tuples at first, packed by the chunk into an array for each column."""

    def __init__(self, columns: Sequence[str], integers: Sequence[str] = ()) -> None:
        self._recent: list[tuple[float, ...]] = []
        self._dtypes = {name: np.int64 if name in integers else np.float64 for name in columns}
        self._packed: dict[str, list[np.ndarray]] = {name: [] for name in columns}

    def append(self, row: tuple[float, ...]) -> None:
        """One more row, a value for each column."""
        self._recent.append(row)
        if len(self._recent) >= CHUNK_ROWS:
            self._pack()

    def _pack(self) -> None:
        if self._recent:
            for (name, chunks), values in zip(self._packed.items(), zip(*self._recent, strict=True), strict=True):
                chunks.append(np.array(values, dtype=self._dtypes[name]))
        self._recent.clear()

    def columns(self) -> dict[str, np.ndarray]:
        """All rows. A column's chunks go as it is made: there is never a second copy of the whole."""
        self._pack()
        return {name: self._column(name) for name in self._packed}

    def _column(self, name: str) -> np.ndarray:
        chunks = self._packed[name]
        chunks[:] = [np.concatenate(chunks)] if chunks else [np.empty(0, dtype=self._dtypes[name])]
        return chunks[0]


class _Planned(NamedTuple):
    """What was noted when a batch was planned, until it is settled."""

    state: tuple[float, ...]
    pool_bytes: tuple[float, ...]
    late_since_s: list[float]
    """For each late request that gets its next token from this batch, when its last one came."""
    num_late_decodes: int


class Recorder:
    """Watches every step of one replica and keeps the tables of a run."""

    def __init__(
        self,
        scheduler: Scheduler,
        on_progress: Callable[[float, int], None] | None = None,
        batches_per_sample: int = BATCHES_PER_SAMPLE,
    ) -> None:
        """`on_progress(now_s, num_ended)` is called now and then."""
        self._on_progress = on_progress
        self._between_samples = batches_per_sample, batches_per_sample * STEPS_PER_SAMPLE // BATCHES_PER_SAMPLE
        self._pool_bytes = PoolBytes(scheduler)
        self._has_source = scheduler.has_source
        counts = (*REQUEST_COUNTS, "loaded_tokens") if scheduler.has_source else REQUEST_COUNTS
        self._requests = Rows((*REQUEST_TIMES, *counts), counts)
        self._names: dict[str, list[str | None]] = {name: [] for name in REQUEST_NAMES}
        self._steps = Rows((*STEP_TIMES, *STEP_COUNTS, *BYTE_COLUMNS), STEP_COUNTS)
        self._gaps = Rows(("gap_s",))
        self._in_flight: deque[_Planned] = deque()
        self._late: dict[str, tuple[Request, float | None]] = {}
        """Requests that were preempted or stalled after a token, and when it came; None: it is still in flight."""
        self._num_planned = self._num_steps = self._num_ended = 0
        self._evictions_before = 0
        self._next_sample = (0, 0)

    # A recorder is a `StepObserver`.

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Note what the server holds once the batch is planned."""
        plan, pool = scheduler.plan, scheduler.manager.pool
        for request in plan.rejected:
            self.rejected(request, TOO_LARGE)
        late_since_s: list[float] = []
        num_late_decodes = 0
        if self._late or plan.preempted or plan.stalled:
            late_since_s, num_late_decodes = self._note_late(plan, None if self._in_flight else start_s)
        state = (
            len(scheduler.running),
            len(scheduler.waiting) + len(scheduler.held),
            len(plan.preempted),
            pool.num_blocks - 1 - pool.num_free,
            pool.num_cached_free,
            pool.num_free,
            pool.num_evictions - self._evictions_before,
        )
        self._evictions_before = pool.num_evictions
        pool_bytes = NO_BYTES
        if self._num_planned >= self._next_sample[0] or scheduler.step >= self._next_sample[1]:
            pool_bytes = self._pool_bytes.sample(batch)
            batches, steps = self._between_samples
            self._next_sample = self._num_planned + batches, scheduler.step + steps
        self._in_flight.append(_Planned(state, pool_bytes, late_since_s, num_late_decodes))
        self._num_planned += 1

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """Write the batch's row, and one for each request that ended with it."""
        planned = self._in_flight.popleft()
        for since_s in planned.late_since_s:
            self._gaps.append((end_s - since_s,))
        for name, (request, last_s) in self._late.items():
            if last_s is None:  # its last token came with this batch
                self._late[name] = (request, end_s)
        chunks = batch.prefill_chunks
        work = (batch.num_prefill_tokens if chunks else 0, len(chunks), batch.num_decodes - planned.num_late_decodes)
        row = (start_s, end_s, self._num_steps, num_steps, *work, *planned.state, *planned.pool_bytes)
        self._steps.append(row)
        self._num_steps += num_steps
        for request in ended:
            self._late.pop(request.request_id, None)
            self._end(request, "finished", None)
        if self._on_progress is not None and (ended or self._num_planned % 256 == 0):
            self._on_progress(end_s, self._num_ended)

    def restart(self, scheduler: Scheduler) -> None:
        """Another server stands where the one before was; what that one had not settled never was."""
        self._pool_bytes = PoolBytes(scheduler)
        self._in_flight.clear()
        self._late.clear()
        self._evictions_before = 0
        self._next_sample = (self._num_planned, 0)

    # Late tokens.

    def _note_late(self, plan: Plan, last_token_s: float | None) -> tuple[list[float], int]:
        """Who misses the planned step is late from now on; who is late and gets a token from it is not any more.

        Gives back since when those were late, and how many of them decode. The last token of who misses
        the step came at `last_token_s`, or comes with the batch in flight if that is None.
        """
        missing = {request.request_id: request for request in (*plan.preempted, *plan.stalled)}
        late_since_s: list[float] = []
        num_decodes = 0
        for name, (request, since_s) in list(self._late.items()):
            if name not in missing and since_s is not None and (request.is_decoding or request in plan.finishing):
                late_since_s.append(since_s)
                num_decodes += request not in plan.prompt_done
                del self._late[name]
        for name, request in missing.items():
            # Of one that was preempted in its prompt there is no token to be late after.
            has_token = request in plan.stalled or request.known_tokens > request.prompt_tokens
            if has_token and name not in self._late:
                self._late[name] = (request, last_token_s)
        return late_since_s, num_decodes

    # Requests.

    def rejected(self, request: Request, reason: str) -> None:
        """A request was turned away."""
        self._end(request, "rejected", reason)

    def lost(self, request: Request, reason: str) -> None:
        """A request went down with its server."""
        self._end(request, "lost", reason)

    def _end(self, request: Request, status: str, reason: str | None) -> None:
        self._num_ended += 1
        names = (request.request_id, request.session, status, reason)
        for column, name in zip(self._names.values(), names, strict=True):
            column.append(name)
        times = (request.arrival_s, request.first_scheduled_s, request.first_token_s, request.finish_s)
        self._requests.append(
            (
                *(nan if time_s is None else time_s for time_s in times),
                request.prompt_tokens,
                request.output_tokens,
                request.cached_tokens,
                request.num_preemptions,
                request.priority,
                *((request.loaded_tokens,) if self._has_source else ()),
            )
        )

    # Tables.

    def tables(self) -> dict[str, Columns]:
        """All three, by name."""
        return {"requests": self.requests_table(), "steps": self.steps_table(), "token_gaps": self.token_gaps_table()}

    def requests_table(self) -> Columns:
        """A row per request, in the order in which they ended."""
        names = {name: np.array(values, dtype=object) for name, values in self._names.items()}
        return {"request_id": names.pop("request_id"), **self._requests.columns(), **names}

    def steps_table(self) -> Columns:
        """A row per batch; the pool's bytes are filled in some, about every `STEPS_PER_SAMPLE` steps."""
        return self._steps.columns()

    def token_gaps_table(self) -> Columns:
        """Gaps between tokens of one request that are not one step apart: gap_s, count."""
        gaps_s, counts = np.unique(self._gaps.columns()["gap_s"], return_counts=True)
        return {"gap_s": gaps_s, "count": counts}
