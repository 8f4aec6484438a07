"""Many machines: the workers of a Dask scheduler, as an executor. The only module that knows Dask (extra `cluster`)."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simulator.scenario import ScenarioError

__all__ = ["DaskCluster"]

_SECONDS_TO_ANSWER = 10


@dataclass(frozen=True)
class DaskCluster:
    """The workers of a scheduler. They need kvplan, of the same version, and the study's files at the same paths."""

    address: str
    """tcp://HOST:PORT."""

    @property
    def num_workers(self) -> int:
        """Threads of all workers that are there now."""
        with self._client() as client:
            return max(1, sum(map(int, client.nthreads().values())))

    @contextmanager
    def open(self, num_workers: int | None = None) -> Iterator[Executor]:
        """The cluster's executor; it has the workers that it has."""
        with self._client() as client:
            executor = client.get_executor(pure=False)
            try:
                yield executor
            except BaseException:
                executor.shutdown(wait=False)  # takes back what waits and what runs
                raise
            executor.shutdown()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        try:
            import distributed
        except ImportError:
            raise ScenarioError("--executor: needs Dask: pip install 'kvplan[cluster]'") from None
        try:
            client = distributed.Client(self.address, timeout=_SECONDS_TO_ANSWER, set_as_default=False)
        except OSError:
            raise ScenarioError(f"--executor: no Dask scheduler answers at {self.address}") from None
        with client:
            yield client
