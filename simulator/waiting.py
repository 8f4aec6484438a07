"""The waiting queue, first come first served or by priority."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from simulator.request import Request

__all__ = ["FcfsQueue", "PriorityQueue", "WaitingQueue"]


class WaitingQueue(Protocol):
    """Requests that hold no blocks, in the order in which they will be admitted."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def add(self, request: Request) -> None:
        """A request has arrived."""

    def put_back(self, request: Request) -> None:
        """A running request was preempted."""

    def head(self) -> Request:
        """The next request to admit."""

    def pop(self) -> Request:
        """Take the next request out."""

    def remove(self, request: Request) -> None:
        """Take this request out, wherever it stands."""


class FcfsQueue:
    """First come, first served; preempted requests go first."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """A request has arrived."""
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        """A running request was preempted."""
        self._requests.appendleft(request)

    def head(self) -> Request:
        """The next request to admit."""
        return self._requests[0]

    def pop(self) -> Request:
        """Take the next request out."""
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        """Take this request out, wherever it stands."""
        self._requests.remove(request)


class PriorityQueue:
    """The smallest priority number first, then the earliest arrival."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))

    def add(self, request: Request) -> None:
        """A request has arrived."""
        heappush(self._heap, request)

    def put_back(self, request: Request) -> None:
        """A running request was preempted."""
        heappush(self._heap, request)

    def head(self) -> Request:
        """The next request to admit."""
        return self._heap[0]

    def pop(self) -> Request:
        """Take the next request out."""
        return heappop(self._heap)

    def remove(self, request: Request) -> None:
        """Take this request out, wherever it stands."""
        self._heap.remove(request)
        heapify(self._heap)
