"""Where the points of a study run: an executor as `concurrent.futures` has it is an argument, not a kind of study."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from typing import Any, Protocol

from simulator.scenario import ScenarioError

__all__ = ["Executors", "LocalProcesses", "ThisProcess", "executors_at", "num_cores"]

_DASK = "dask://"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Executors(Protocol):
    """Opens an executor, and another one should that break."""

    @property
    def num_workers(self) -> int:
        """How many points run at a time."""

    def open(self, num_workers: int | None = None) -> AbstractContextManager[Executor]:
        """An executor, of fewer workers if so many are stated; what still runs is ended when its block is left early.

        Raises ScenarioError where there is none to be had.
        """


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine."""

    num_workers: int

    @contextmanager
    def open(self, num_workers: int | None = None) -> Iterator[Executor]:
        """A pool of processes. They start afresh: a forked one would share the threads that draw the progress."""
        others = set(active_children())
        num_workers = num_workers or self.num_workers
        pool = ProcessPoolExecutor(num_workers, get_context("spawn"), initializer=_begin_work)
        try:
            with _one_thread_each(), _deaf_to_ctrl_c():
                for _ in range(num_workers):
                    pool.submit(_nothing)  # starts a worker
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown()


@dataclass(frozen=True)
class ThisProcess:
    """No other process: each point runs where and when it is asked for. For few points, and for looking into one."""

    num_workers: int = 1

    @contextmanager
    def open(self, num_workers: int | None = None) -> Iterator[Executor]:
        """An executor whose futures have their results when they are given out."""
        with _AtOnce() as executor:
            yield executor


class _AtOnce(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # is raised where the result is asked for
            future.set_exception(error)
        return future


def _nothing() -> None:
    pass


def _begin_work() -> None:
    """In a new worker: end when who started it has ended, and import what points need."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import simulator.study_point  # noqa: F401


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)  # nobody is there to take a result


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start meanwhile compute with one thread: there is one for each core already."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that start meanwhile leave Ctrl-C to this one: it knows what to keep and what to say."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def num_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system says
        return os.cpu_count() or 1


def executors_at(address: str | None, num_workers: int | None = None) -> Executors:
    """This machine's processes, or with "dask://HOST:PORT" the workers of that Dask scheduler.

    Raises ScenarioError with one line for a person.
    """
    if num_workers is not None and num_workers < 1:
        raise ScenarioError(f"--workers: must be at least 1, got {num_workers}")
    if address is None:
        return LocalProcesses(num_workers or num_cores())
    if not address.startswith(_DASK) or address == _DASK:
        raise ScenarioError(f"--executor: must be dask://HOST:PORT, the scheduler's address, got {address!r}")
    if num_workers is not None:
        raise ScenarioError("--workers: does not go with --executor: a cluster has its own")
    from simulator.dask_cluster import DaskCluster

    return DaskCluster(f"tcp://{address.removeprefix(_DASK)}")
