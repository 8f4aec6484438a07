"""Fit efficiencies to when requests were where: their stamps, as servers and benchmarks log them.

Nobody logs single steps of a server in service, but requests' stamps are there: queued, scheduled, first token, last
token, each token. The workload is replayed, and says of which steps the time between two stamps of a request is made;
the measured times are fitted to the sums of these steps' parts. With better efficiencies the replay is another one, so
both take turns until they agree.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simulator.batch import Batch
from simulator.calibration import Fit, RooflineOf, Spans, fit_efficiencies
from simulator.deployment import Deployment
from simulator.efficiencies import Efficiencies
from simulator.engine import arrivals_at, run_to_the_end
from simulator.latency import StepTimes, Work
from simulator.request import Request
from simulator.scenario import ScenarioError
from simulator.scheduler import Scheduler
from workloads import Trace

__all__ = ["Replay", "StampFit", "Stamps", "fit_to_stamps", "replay"]

Floats = npt.NDArray[np.float64]

MOST_ROUNDS = 8
SHAPING_ROUNDS = 2
"""After so many the shape of the roofline stays: replay and fit settle the better."""
SETTLED = 1e-3
"""Replays agree where their spans last the same, by so much of their time (median)."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """When one request was where, on one clock."""

    arrival_s: float
    scheduled_s: float | None
    """When its first step was planned, if that is known."""
    token_s: Mapping[int, float]
    """Of the first output token (1) and as many others as are known, in order."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Neighbouring stamps, as numbers of output tokens; 0 is when it was scheduled, or came."""
        yield from pairwise([0, *self.token_s])

    def at(self, mark: int, *, scheduled: bool) -> float:
        """The time of a mark of `pairs`; `scheduled` says which one 0 is."""
        if mark:
            return self.token_s[mark]
        return self.arrival_s if not scheduled or self.scheduled_s is None else self.scheduled_s


@dataclass(eq=False)
class Replay:
    """One replica's steps, one by one, and when each watched request got its tokens. It is a `StepObserver`."""

    watched: frozenset[str]
    batches: list[Batch] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    """Beginning and end of each step."""
    requests: dict[str, Request] = field(default_factory=dict)
    token_s: dict[str, list[float]] = field(default_factory=dict)
    _in_flight: deque[list[str]] = field(default_factory=deque)

    def watch(self, arrivals: Iterator[Request]) -> Iterator[Request]:
        """The same requests, some of which are kept in sight."""
        for request in arrivals:
            if request.request_id in self.watched:
                self.requests[request.request_id] = request
                self.token_s[request.request_id] = []
            yield request

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Note whose tokens will come out of the step."""
        plan = scheduler.plan
        chunks = plan.num_tokens()
        decoding = [each for each in scheduler.running.values() if each.is_decoding and each.order not in chunks]
        names = dict.fromkeys(each.request_id for each in (*plan.prompt_done, *plan.finishing, *decoding))
        self._in_flight.append([name for name in names if name in self.watched])

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """A step has run."""
        names = self._in_flight.popleft()
        if not batch.num_tokens:
            return
        self.batches.append(batch)
        self.times_s += [start_s, end_s]
        for name in names:
            self.token_s[name].append(end_s)

    def stamps(self, name: str) -> Stamps | None:
        """Of a request; None where it was turned away."""
        request = self.requests.get(name)
        if request is None or request.finish_s is None:
            return None
        return Stamps(request.arrival_s, request.first_scheduled_s, dict(enumerate(self.token_s[name], start=1)))

    def spans(self, measured: Mapping[str, Stamps]) -> Spans:
        """The measured times between neighbouring stamps, and the steps that they are made of here.

        Raises ScenarioError where none of these requests is served here.
        """
        rows: list[tuple[float, float, float]] = []
        kinds: list[str] = []
        for name, truth in measured.items():
            here = self.stamps(name)
            if here is None or not set(truth.token_s) <= set(here.token_s):
                continue
            scheduled = truth.scheduled_s is not None
            for begin, end in truth.pairs():
                row = [stamps.at(mark, scheduled=scheduled) for stamps in (here, truth) for mark in (begin, end)]
                if row[3] > row[2] and row[1] > row[0]:
                    rows.append((row[0], row[1], row[3] - row[2]))
                    kinds.append("between tokens" if begin else "to the first token")
        if not rows:
            raise ScenarioError("none of the measured requests is served in the replay: do the server's flags fit?")
        begin_s, end_s, measured_s = np.array(rows, dtype=np.float64).T
        places = np.repeat(np.arange(len(self.batches) + 1, dtype=np.float64), 2)[1:-1]
        return Spans(
            self.batches,
            np.interp(begin_s, self.times_s, places),
            np.interp(end_s, self.times_s, places),
            measured_s,
            kinds,
        )


@dataclass(frozen=True, slots=True)
class _StepByStep:
    """Step times that let no row of steps pass as one."""

    step_times: StepTimes

    @property
    def source(self) -> str:
        return self.step_times.source

    def durations_s(self, batch: Batch) -> list[float]:
        return self.step_times.durations_s(batch)[:1]

    def least_s(self, work: Work) -> float:
        return self.step_times.least_s(work)


def replay(deployment: Deployment, trace: Trace, step_times: StepTimes, watched: Sequence[str] = ()) -> Replay:
    """All steps of a trace on one replica, with the stamps of some of its requests."""
    scheduler = deployment.new_scheduler()
    observer = Replay(frozenset(watched))
    arrivals = observer.watch(arrivals_at(trace, deployment, scheduler, lambda request, reason: None))
    run_to_the_end(scheduler, _StepByStep(step_times), arrivals, observer)
    return observer


@dataclass(frozen=True, eq=False)
class StampFit:
    """What requests' stamps say about a server."""

    fit: Fit
    spans: Spans
    """Of the last replay."""
    num_rounds: int
    has_settled: bool


def fit_to_stamps(
    deployment: Deployment,
    trace: Trace,
    measured: Mapping[str, Stamps],
    roofline_of: RooflineOf,
    start: Efficiencies | None = None,
    overlaps: Sequence[float] | None = None,
) -> StampFit:
    """Replay and fit in turns, until the replay's spans stay as they are.

    `measured`: of requests of the trace by their ids; the others only compete. Raises ScenarioError where the replay
    has none of them.
    """
    efficiencies, before_s = start or Efficiencies(), np.empty(0)
    has_settled, num_rounds = False, 0
    while not has_settled and num_rounds < MOST_ROUNDS:
        num_rounds += 1
        steps = replay(deployment, trace, roofline_of(efficiencies), list(measured))
        spans = steps.spans(measured)
        fit = fit_efficiencies(roofline_of, spans, start, overlaps)
        if num_rounds == SHAPING_ROUNDS:
            overlaps = [fit.efficiencies.matmul_overlap]
        efficiencies, now_s = fit.efficiencies, fit.predicted_s
        has_settled = len(before_s) == len(now_s) and np.median(np.abs(now_s / before_s - 1)) < SETTLED
        before_s = now_s
    return StampFit(fit, spans, num_rounds, has_settled)
