"""Rows of what happened: one per request that ended, one per batch. No arithmetic beyond what a row needs.

Rows are kept as numbers in chunks, so that a run of a million requests stays small; nothing is
recorded per token. Where the pool's bytes are is a look at all block tables, so it is sampled.
"""

from collections.abc import Callable, Sequence
from math import nan

import numpy as np
import pandas as pd

from simulator.batch import Batch
from simulator.pool_bytes import BYTE_COLUMNS, PoolBytes
from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["Recorder"]

CHUNK_ROWS = 1 << 15
BATCHES_PER_SAMPLE = 64

REQUEST_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
REQUEST_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "num_preemptions", "priority")
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


class _Rows:
    """Rows of numbers: tuples at first, packed into an array [rows, columns] by the chunk."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._recent: list[tuple[float, ...]] = []
        self._packed: list[np.ndarray] = []

    def append(self, row: tuple[float, ...]) -> None:
        self._recent.append(row)
        if len(self._recent) >= CHUNK_ROWS:
            self._pack()

    def _pack(self) -> None:
        self._packed.append(np.array(self._recent, dtype=np.float64).reshape(-1, len(self.columns)))
        self._recent = []

    def table(self, integers: Sequence[str]) -> pd.DataFrame:
        self._pack()
        frame = pd.DataFrame(np.concatenate(self._packed), columns=list(self.columns))
        return frame.astype(dict.fromkeys(integers, np.int64))


class Recorder:
    """Watches every step of one replica and keeps the tables of a run."""

    def __init__(self, scheduler: Scheduler, on_progress: Callable[[float, int], None] | None = None) -> None:
        """`on_progress(now_s, num_ended)` is called now and then."""
        self._scheduler = scheduler
        self._on_progress = on_progress
        self._pool_bytes = PoolBytes(scheduler.manager)
        self._requests = _Rows((*REQUEST_TIMES, *REQUEST_COUNTS))
        self._names: list[tuple[str, str | None, str, str | None]] = []
        self._steps = _Rows((*STEP_TIMES, *STEP_COUNTS, *BYTE_COLUMNS))
        self._gaps = _Rows(("gap_s",))
        self._late: dict[str, Request] = {}
        self._no_bytes = (nan,) * len(BYTE_COLUMNS)
        self._num_batches = 0
        self._num_ended = 0
        self._evictions_before = 0
        self._state: tuple[float, ...] = ()
        self._bytes: tuple[float, ...] = ()

    # A recorder is a `StepObserver`.

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Note what the server holds while the batch runs."""
        plan, pool = scheduler.plan, scheduler.manager.pool
        for request in plan.rejected:
            self.rejected(request, "its tokens need more blocks than the pool has")
        for request in (*plan.preempted, *plan.stalled):
            if request.first_token_s is not None and request.last_token_s is None:
                request.last_token_s = start_s
                self._late[request.request_id] = request
        self._state = (
            len(scheduler.running),
            len(scheduler.waiting),
            len(plan.preempted),
            pool.num_blocks - 1 - pool.num_free,
            pool.num_cached_free,
            pool.num_free,
            pool.num_evictions - self._evictions_before,
        )
        self._evictions_before = pool.num_evictions
        sampled = self._num_batches % BATCHES_PER_SAMPLE == 0
        self._bytes = self._pool_bytes.sample(scheduler) if sampled else self._no_bytes
        self._num_batches += 1

    def settled(self, start_s: float, durations_s: np.ndarray, batch: Batch, ended: list[Request]) -> None:
        """Write the batch's row, and one for each request that ended with it."""
        num_steps = len(durations_s)
        end_s = start_s + float(durations_s.sum()) if num_steps > 1 else start_s + float(durations_s[0])
        step = self._scheduler.step - num_steps
        prefill = batch.num_prefill_tokens if batch.prefill_chunks else 0
        late = self._close_gaps(end_s) if self._late else 0
        work = (step, num_steps, prefill, len(batch.prefill_chunks), batch.num_decodes - late)
        self._steps.append((start_s, end_s, *work, *self._state, *self._bytes))
        for request in ended:
            self._end(request, "finished", None)
        if self._on_progress is not None and (ended or self._num_batches % 256 == 0):
            self._on_progress(end_s, self._num_ended)

    def _close_gaps(self, now_s: float) -> int:
        """Note the gaps of late requests that got their next token now; gives back how many of them are decodes."""
        stalled = {request.request_id for request in self._scheduler.plan.stalled}
        num_decodes = 0
        for name, request in list(self._late.items()):
            waits = request.finish_s is None and (not request.is_decoding or name in stalled)
            if waits or request.last_token_s is None:
                continue
            self._gaps.append((now_s - request.last_token_s,))
            request.last_token_s = None
            del self._late[name]
            num_decodes += request not in (chunk[0] for chunk in self._scheduler.plan.chunks)
        return num_decodes

    # Requests.

    def rejected(self, request: Request, reason: str) -> None:
        """A request was turned away."""
        self._end(request, "rejected", reason)

    def unfinished(self, requests: Sequence[Request]) -> None:
        """The run ended before these requests did."""
        for request in requests:
            self._end(request, "unfinished", None)

    def _end(self, request: Request, status: str, reason: str | None) -> None:
        self._num_ended += 1
        self._names.append((request.request_id, request.session, status, reason))
        times = (request.arrival_s, request.first_scheduled_s, request.first_token_s, request.finish_s)
        self._requests.append(
            (
                *(nan if time_s is None else time_s for time_s in times),
                request.prompt_tokens,
                request.output_tokens,
                request.cached_tokens,
                request.num_preemptions,
                request.priority,
            )
        )

    # Tables.

    def requests_table(self) -> pd.DataFrame:
        """A row per request, in the order in which they ended."""
        table = self._requests.table(REQUEST_COUNTS)
        names = pd.DataFrame(self._names, columns=["request_id", "session", "status", "reason"], dtype=object)
        for position, column in ((0, "request_id"), (len(table.columns) + 1, "session")):
            table.insert(position, column, names[column])
        return table.assign(status=names["status"], reason=names["reason"])

    def steps_table(self) -> pd.DataFrame:
        """A row per batch; the pool's bytes are filled in every `BATCHES_PER_SAMPLE`th."""
        return self._steps.table(STEP_COUNTS)

    def token_gaps_table(self) -> pd.DataFrame:
        """Gaps between tokens of one request that are not one step apart: gap_s, count."""
        gaps = self._gaps.table(())
        return gaps.groupby("gap_s", as_index=False).size().rename(columns={"size": "count"})
