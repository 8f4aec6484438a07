"""Progress bars for one run and for several side by side: finished requests, speed, and when it will end."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from simulator.scenario import Scenario
from workloads import Trace

if TYPE_CHECKING:
    from simulator.closed_loop import ClosedLoop
    from simulator.planner import Candidate

__all__ = ["PlanProgress", "PointsProgress", "RunProgress", "StudyProgress"]

SECONDS_BETWEEN_UPDATES = 0.1
RUNS_OF_A_PLAN = 120
"""As a rule, for a model on all accelerators that have a price."""

Asked = TypeVar("Asked", bound="Candidate")
Told = TypeVar("Told")


def _progress(*columns: TextColumn, shown: bool) -> Progress:
    """A bar on standard error, and what these columns say; nothing if it is not shown, or goes to a file."""
    console = Console(stderr=True)
    described, disable = TextColumn("{task.description}"), not (shown and console.is_terminal)
    return Progress(
        described, BarColumn(), *columns, TimeRemainingColumn(), console=console, transient=True, disable=disable
    )


class _Shown:
    """Something that is shown while its block runs."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


class RunProgress(_Shown):
    """Shows on standard error how far a run is. The total is known where the trace says how long it is."""

    def __init__(self, scenario: Scenario, *, shown: bool, num_requests: int | None = None) -> None:
        """`num_requests`: end after so many, not with the trace."""
        from simulator.closed_loop_options import traffic_of

        traffic = traffic_of(scenario)
        self.trace: Trace | None = traffic if isinstance(traffic, Trace) else None
        """None in a closed loop."""
        self._progress = _progress(
            TextColumn(
                "{task.completed:,.0f} requests, {task.fields[simulated]} simulated, {task.fields[speed]:,.0f}/s"
            ),
            shown=shown,
        )
        is_shown = not self._progress.disable
        total = num_requests or scenario.num_requests or (_num_requests(scenario, traffic) if is_shown else None)
        name = traffic.name if isinstance(traffic, Trace) else traffic.sessions.name
        self._task = self._progress.add_task(f"Replaying {name}", total=total, simulated="0 s", speed=0.0)
        self._started = self._last = time.monotonic()

    def update(self, now_s: float, num_ended: int) -> None:
        """So many requests have ended at this simulated time."""
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_UPDATES:
            return
        self._last = now
        speed = num_ended / (now - self._started)
        self._progress.update(self._task, completed=num_ended, simulated=_duration(now_s), speed=speed)


class StudyProgress(_Shown):
    """Shows on standard error how far several runs of one trace are, together, and when the last will end."""

    def __init__(self, name: str, num_requests: int, *, shown: bool) -> None:
        self._num_requests = num_requests
        self._progress = _progress(TextColumn("{task.completed:,.0f} of {task.total:,.0f} requests"), shown=shown)
        self._task = self._progress.add_task(f"Replaying {name}", total=num_requests)

    def update(self, num_ended: int, num_runs: int) -> None:
        """So many requests have ended, over all runs."""
        self._progress.update(self._task, completed=num_ended, total=num_runs * self._num_requests)


class PointsProgress(_Shown):
    """Shows on standard error how many points of a study are done, run, and came to nothing, and when it will end."""

    def __init__(self, name: str, num_points: int, num_kept: int, *, shown: bool) -> None:
        """`num_kept`: so many are there already."""
        self._lost = 0
        self._progress = _progress(
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} points, {task.fields[running]:,} running"),
            TextColumn("{task.fields[lost]}", style="red"),
            shown=shown,
        )
        self._task = self._progress.add_task(f"Study {name}", total=num_points, completed=num_kept, running=0, lost="")

    def running(self, num_running: int) -> None:
        """So many points are being worked at."""
        self._progress.update(self._task, running=num_running)

    def ended(self, *, has_finished: bool) -> None:
        """One more point is done; or it was refused, or failed."""
        self._lost += not has_finished
        lost = f"{self._lost:,} refused or failed" if self._lost else ""
        self._progress.update(self._task, advance=1, lost=lost)


class PlanProgress(_Shown):
    """Shows on standard error what a plan is at, and about how long it still takes: a search does not know its end."""

    def __init__(self, *, shown: bool) -> None:
        self._progress = _progress(
            TextColumn("{task.completed:,.0f} runs, about {task.total:,.0f} in all"), shown=shown
        )
        self._task = self._progress.add_task("Planning", total=RUNS_OF_A_PLAN)

    def update(self, num_done: int) -> None:
        """So many runs are done."""
        total = max(RUNS_OF_A_PLAN, 1.25 * num_done)
        self._progress.update(self._task, completed=num_done, total=total)

    def watched(self, evaluate: Callable[[Asked], Told]) -> Callable[[Asked], Told]:
        """The same, and what it is asked is shown."""

        def shown(asked: Asked) -> Told:
            self._progress.update(self._task, description=f"Trying {asked.num_replicas:,} × {asked.choice.name}")
            return evaluate(asked)

        return shown


def _num_requests(scenario: Scenario, traffic: "Trace | ClosedLoop") -> int | None:
    """How many there will be, if that can be told at little cost: sessions are read for it, they are few."""
    if isinstance(traffic, Trace):
        return traffic.num_requests or _num_lines(scenario.trace)
    if scenario.has_sessions:
        return traffic.sessions.count_calls()
    return traffic.sessions.num_calls or _num_lines(scenario.trace)


def _num_lines(file: Path | None) -> int | None:
    """About how many requests a plain trace file has, to estimate the end; None where that would take reading it."""
    if file is None or file.suffix == ".gz":
        return None
    with file.open("rb") as chunks:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: chunks.read(1 << 20), b""))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
