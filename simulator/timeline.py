"""A run as a timeline for the Perfetto viewer (https://ui.perfetto.dev): what every request and every step did when.

The file is in Chrome's Trace Event Format. Times are whole microseconds, so that neighbours meet exactly: the viewer
drops slices that overlap by the least fraction.

```
# one lane of the requests; another request takes it when this one has ended
# 17 queued | 17 prefill | 17 prefill | 17 decode ....... | 17 preempted | 17 prefill | 17 decode ... | 42 queued
# a gap: the request holds blocks, and the step's token budget did not reach it
```

Slices show what runs. With asynchronous scheduling a step is planned while the one before it runs, so a request is
queued here until its first step runs, which is after its `first_scheduled_s`.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from heapq import heappop, heappush
from io import TextIOWrapper
from json import JSONEncoder
from pathlib import Path
from typing import IO, NamedTuple

from simulator.batch import Batch
from simulator.plan import Plan
from simulator.pool_bytes import BYTE_COLUMNS, PoolBytes
from simulator.recorder import BATCHES_PER_SAMPLE, STEPS_PER_SAMPLE, TOO_LARGE, Recorder
from simulator.request import Request
from simulator.scenario import ScenarioError
from simulator.scheduler import Scheduler

__all__ = ["Timeline", "TraceEvents", "writing"]

# No thread has the number of another process's: the viewer finds the name of a thread by its number alone.
STEPS, COUNTERS, REQUESTS = 1, 2, 3
"""Processes; each has a thread of the same number."""
FIRST_LANE = 4
COMPRESSION = 6
"""Level of gzip: a tenth of the text is left."""

Counters = dict[str, str]
"""Values by name, as an object in JSON."""

encode = JSONEncoder(separators=(",", ":")).encode

# What comes with every step is filled in, which is ten times as fast as encoding it.
STEP = (
    f'{{"ph":"X","pid":{STEPS},"tid":{STEPS},"cat":"step","name":"%s","ts":%d,"dur":%d,"args":{{"step":%d,'
    '"num_steps":%d,"prefill_tokens":%d,"num_prefills":%d,"num_decodes":%d}}'
)
SLICE = f'{{"ph":"X","pid":{REQUESTS},"tid":%d,"cat":"%s","name":%s,"ts":%d,"dur":%d,"args":{{%s%s}}}}'
COUNTER = f'{{"ph":"C","pid":{COUNTERS},"tid":{COUNTERS},"name":"%s","ts":%d,"args":%s}}'
QUEUES = '{"running":%d,"waiting":%d}'
BLOCKS = '{"held_blocks":%d,"cached_blocks":%d,"free_blocks":%d}'
BYTES = "{" + ",".join(f'"{name}":%d' for name in BYTE_COLUMNS) + "}"


class TraceEvents:
    """Events of Chrome's Trace Event Format, written as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._before = '{"traceEvents":[\n'

    def write(self, event: str) -> None:
        """An event: an object in JSON, with the fields that its `ph` asks for."""
        self._stream.write(self._before + event)
        self._before = ",\n"

    def name(self, what: str, pid: int, tid: int, name: str) -> None:
        """Name a process or a thread, and put it where its number says."""
        for key, value in (("name", name), ("sort_index", tid)):
            event = {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_{key}", "args": {key: value}}
            self.write(encode(event))

    def end(self) -> None:
        """There are no more events."""
        self._stream.write('\n],"displayTimeUnit":"ms"}\n')


@contextmanager
def writing(path: Path) -> Iterator[TraceEvents]:
    """Events that go into a file, compressed if its name ends in .gz; it is there whole or not at all.

    Raises ScenarioError where it cannot be written.
    """
    if not path.name.endswith((".json", ".json.gz")):
        raise ScenarioError(f"--timeline: must end in .json.gz or .json, got {str(path)!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _whole_file(path) as file, _text(file, is_compressed=path.suffix == ".gz") as stream:
            events = TraceEvents(stream)
            yield events
            events.end()
    except OSError as error:
        raise ScenarioError(f"--timeline: {path} cannot be written: {error.strerror}") from None


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        try:
            yield file
            file.close()
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _text(file: IO[bytes], *, is_compressed: bool) -> TextIOWrapper:
    # Without the time and the name of the file, so that equal runs give equal bytes.
    binary = GzipFile("", "wb", COMPRESSION, file, mtime=0) if is_compressed else file
    return TextIOWrapper(binary, encoding="ascii", newline="\n")


@dataclass(slots=True)
class _Life:
    """A request that has arrived and not ended: its lane, and what it is at."""

    lane: int
    phase: str | None
    """What goes on since `since_us`; None: nothing that has begun goes on."""
    since_us: int
    since_step: int = 0
    about: str = ""
    """What its slices say of it, once they do."""


class _Planned(NamedTuple):
    """What was noted when a batch was planned, until it is settled."""

    plan: Plan
    counters: Counters


class Timeline:
    """Watches a run beside its recorder, and writes events of what is over: it keeps only requests that are alive."""

    def __init__(self, events: TraceEvents, scheduler: Scheduler, recorder: Recorder) -> None:
        """`recorder` is told all that the timeline is told."""
        self._events = events
        self._scheduler = scheduler
        self._recorder = recorder
        self._pool_bytes = PoolBytes(scheduler)
        self._in_flight: deque[_Planned] = deque()
        self._lives: dict[int, _Life] = {}
        """By the request's identity: a compiled one has no hash, and ids of a trace may come twice."""
        self._free_lanes: list[int] = []
        """A heap: the lowest is taken first, so there are as many lanes as requests were alive at once."""
        self._lane_ends_us: list[int] = []
        self._num_planned = self._num_steps = 0
        self._next_sample = (0, 0)
        self._shown: Counters = {}
        for process, name in ((STEPS, "steps"), (COUNTERS, "counters"), (REQUESTS, "requests")):
            events.name("process", process, process, name)
        events.name("thread", STEPS, STEPS, "steps")
        events.name("thread", REQUESTS, REQUESTS, "rejected")

    def watch(self, arrivals: Iterator[Request]) -> Iterator[Request]:
        """The same requests: each gets a lane when it has arrived."""
        for request in arrivals:
            yield request  # comes back once the request is delivered
            lane = self._take_lane()
            self._lives[id(request)] = _Life(lane, "queued", max(_us(request.arrival_s), self._lane_ends_us[lane]))

    def rejected(self, request: Request, reason: str) -> None:
        """A request was turned away at the door."""
        self._recorder.rejected(request, reason)
        self._reject(request, _us(request.arrival_s), reason)

    # A timeline is a `StepObserver`.

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Note what the server holds once the batch is planned."""
        self._recorder.planned(start_s, scheduler, batch)
        counters = self._counters()
        if self._num_planned >= self._next_sample[0] or scheduler.step >= self._next_sample[1]:
            counters |= self._byte_counters(batch)
            self._next_sample = (self._num_planned + BATCHES_PER_SAMPLE, scheduler.step + STEPS_PER_SAMPLE)
        self._num_planned += 1
        self._in_flight.append(_Planned(scheduler.plan, counters))

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """Write the batch, its chunks, and all phases that end with its beginning or its end."""
        self._recorder.settled(start_s, end_s, num_steps, batch, ended)
        plan, counters = self._in_flight.popleft()
        start_us, end_us = _us(start_s), _us(end_s)
        self._count(start_us, counters)
        self._write_step(start_us, end_us, num_steps, batch)
        self._begin(plan, start_us)
        for (request, num_tokens), (_, num_computed) in zip(plan.chunks, batch.prefill_chunks, strict=True):
            tokens = f',"tokens":{num_tokens},"computed_before":{num_computed}'
            self._write_slice(request, self._go_on(request, start_us), "prefill", (start_us, end_us), tokens)
        for request in plan.stalled:
            self._go_on(request, start_us)
        self._num_steps += num_steps
        for request in (*plan.stalled, *plan.prompt_done):
            self._go_on(request, end_us, "decode")
        for request in ended:
            self._end(request, end_us)
        if not (self._scheduler.running or self._scheduler.waiting):
            self._count(end_us, self._counters() | self._byte_counters(None))

    # Requests.

    def _begin(self, plan: Plan, start_us: int) -> None:
        """The planned step begins without those that were preempted or rejected for it."""
        for request in plan.preempted:
            if id(request) in self._lives:  # else the step before it has computed its last token
                self._go_on(request, start_us, "preempted")
        for request in plan.rejected:
            self._reject(request, start_us, TOO_LARGE)
            self._end(request, start_us)

    def _go_on(self, request: Request, now_us: int, phase: str | None = None) -> _Life:
        """Write the phase that ends now, and begin another."""
        life = self._lives[id(request)]
        num_tokens = self._num_steps - life.since_step if life.phase == "decode" else 0
        if life.phase is not None and (num_tokens or now_us > life.since_us):
            tokens = f',"tokens":{num_tokens}' if num_tokens else ""
            self._write_slice(request, life, life.phase, (life.since_us, now_us), tokens)
        life.phase, life.since_us, life.since_step = phase, now_us, self._num_steps
        return life

    def _end(self, request: Request, now_us: int) -> None:
        lane = self._go_on(request, now_us).lane
        del self._lives[id(request)]
        self._lane_ends_us[lane] = now_us
        heappush(self._free_lanes, lane)

    def _take_lane(self) -> int:
        if self._free_lanes:
            return heappop(self._free_lanes)
        lane = len(self._lane_ends_us)
        self._lane_ends_us.append(0)
        self._events.name("thread", REQUESTS, FIRST_LANE + lane, f"lane {lane + 1}")
        return lane

    # Events.

    def _write_slice(self, request: Request, life: _Life, phase: str, span_us: tuple[int, int], tokens: str) -> None:
        if not life.about:
            life.about = encode(_arguments(request))[1:-1]
        name = encode(f"{request.request_id} {phase}")
        start_us, end_us = span_us
        lane = FIRST_LANE + life.lane
        self._events.write(SLICE % (lane, phase, name, start_us, end_us - start_us, life.about, tokens))

    def _reject(self, request: Request, now_us: int, reason: str) -> None:
        event = {
            "ph": "i",
            "s": "t",
            "pid": REQUESTS,
            "tid": REQUESTS,
            "cat": "rejected",
            "name": f"{request.request_id} rejected",
            "ts": now_us,
            "args": _arguments(request) | {"reason": reason},
        }
        self._events.write(encode(event))

    def _write_step(self, start_us: int, end_us: int, num_steps: int, batch: Batch) -> None:
        num_tokens, num_decodes = batch.num_prefill_tokens, batch.num_decodes
        if not (num_tokens or num_decodes or end_us > start_us):
            return  # it only rejected
        kinds = [kind for kind, count in (("prefill", num_tokens), ("decode", num_decodes)) if count]
        work = (self._num_steps, num_steps, num_tokens, len(batch.prefill_chunks), num_decodes)
        self._events.write(STEP % (" + ".join(kinds) or "empty", start_us, end_us - start_us, *work))

    # Counters, named as the columns of the table of steps.

    def _counters(self) -> Counters:
        scheduler, pool = self._scheduler, self._scheduler.manager.pool
        num_free = pool.num_free
        return {
            "requests": QUEUES % (len(scheduler.running), len(scheduler.waiting)),
            "blocks": BLOCKS % (pool.num_blocks - 1 - num_free, pool.num_cached_free, num_free),
        }

    def _byte_counters(self, batch: Batch | None) -> Counters:
        return {"bytes": BYTES % self._pool_bytes.sample(batch)}

    def _count(self, now_us: int, counters: Counters) -> None:
        for name, values in counters.items():
            if self._shown.get(name) != values:
                self._shown[name] = values
                self._events.write(COUNTER % (name, now_us, values))


def _arguments(request: Request) -> dict[str, object]:
    """What a slice says of its request."""
    arguments: dict[str, object] = {
        "request": request.request_id,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "cached_tokens": request.cached_tokens,
    }
    if request.session is not None:
        arguments["session"] = request.session
    return arguments


def _us(time_s: float) -> int:
    return round(time_s * 1e6)
