"""Run the points of a study side by side: each outcome is handed over as soon as it is there."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from simulator.executors import Executors
from simulator.scenario import ScenarioError
from simulator.study_point import Point, run_point, why_another, without_run

__all__ = ["run_points"]

_QUEUED_PER_WORKER = 2
"""One runs, one waits beside it: a worker never stands idle, and little is lost when one is killed."""


def run_points(
    points: Mapping[str, Point],
    executors: Executors,
    on_outcome: Callable[[str, dict[str, Any]], None],
    on_running: Callable[[int], None] = lambda num_running: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run points, by their keys; `on_outcome(key, outcome)` gets each outcome (see `run_point`) when it is there.

    `on_running(num_running)`: so many are being worked at. `meanwhile()` is called once all workers of an executor have
    something to do. A worker that is killed takes those with it that it may have been working at: they run once more,
    one at a time, so that only the point that kills its worker fails.
    Raises ScenarioError where there is no executor to be had, or no longer.
    """
    if not points:
        return
    run = _Run(points, executors, on_outcome, on_running, meanwhile)
    suspects = run.start(list(points), min(executors.num_workers, len(points)))
    for key in suspects:
        if run.start([key], 1):
            on_outcome(key, without_run("failed", "its process was killed, twice: does it need too much memory?"))


@dataclass(frozen=True)
class _Run:
    points: Mapping[str, Point]
    executors: Executors
    on_outcome: Callable[[str, dict[str, Any]], None]
    on_running: Callable[[int], None]
    meanwhile: Callable[[], None]

    def start(self, keys: Sequence[str], num_workers: int) -> list[str]:
        """Run these to the end; gives back those that were under way when an executor broke."""
        suspects: list[str] = []
        unstarted = deque(keys)
        while unstarted:
            running: dict[Future[dict[str, Any]], str] = {}
            try:
                with self.executors.open(num_workers) as executor:
                    self._keep_busy(executor, num_workers, unstarted, running)
            except BrokenExecutor:
                suspects += running.values()
        return suspects

    def _keep_busy(
        self,
        executor: Executor,
        num_workers: int,
        unstarted: deque[str],
        running: dict[Future[dict[str, Any]], str],
    ) -> None:
        self._submit(executor, num_workers, unstarted, running)
        self.meanwhile()
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = _outcome_of(future)
                self.on_outcome(running.pop(future), outcome)
            self._submit(executor, num_workers, unstarted, running)

    def _submit(
        self,
        executor: Executor,
        num_workers: int,
        unstarted: deque[str],
        running: dict[Future[dict[str, Any]], str],
    ) -> None:
        """Give each worker something to do, and something to do next."""
        while unstarted and len(running) < num_workers * _QUEUED_PER_WORKER:
            key = unstarted[0]
            running[executor.submit(_answer, key, self.points[key])] = key
            unstarted.popleft()
        self.on_running(min(len(running), num_workers))


def _outcome_of(future: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except CancelledError:
        raise ScenarioError("--executor: gave a point back before it had run: is its scheduler still there?") from None
    except Exception as error:  # what a cluster says of a worker that it lost
        return without_run("failed", f"{type(error).__name__}: {error}")


def _answer(key: str, point: Point) -> dict[str, Any]:
    """In a worker."""
    why = why_another(key, lambda: replace(point).key)
    if why is not None:
        return without_run("failed", why)
    return run_point(point)
