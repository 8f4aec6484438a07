"""All decoding requests of a replica: when each has something to decide, when one ends, what they attend to.

They advance together, one token a step, so nothing is counted up for each. A request is looked at only
in the steps in which it is due: when its block tables change, and at its last token.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from heapq import heappop, heappush
from operator import attrgetter

from simulator.contexts import DecodeContexts, Reach
from simulator.plan import NO_ORDER
from simulator.request import Request

__all__ = ["Decodes"]

ORDER = attrgetter("order")


class Decodes:
    """The decoding requests, by order of admission, with a calendar of what is due when."""

    def __init__(self, reaches: tuple[Reach, ...]) -> None:
        self.contexts = DecodeContexts(reaches)
        self._orders: list[int] = []
        self._due: defaultdict[int, list[Request]] = defaultdict(list)
        self._finishes: list[tuple[int, int, Request]] = []
        """(last step, order, request): a heap in which some entries are out of date."""

    def __len__(self) -> int:
        return len(self._orders)

    def num_before(self, order: int) -> int:
        """How many of them are served before a request of this order."""
        return bisect_left(self._orders, order)

    def add(self, request: Request, step: int) -> None:
        """A request decodes from `step` on: its next token is computed there."""
        request.is_decoding = True
        request.origin = request.computed - step
        request.finish_step = request.max_tokens - 2 - request.origin
        insort(self._orders, request.order)
        heappush(self._finishes, (request.finish_step, request.order, request))
        self.contexts.add(request.origin, step)

    def remove(self, request: Request, step: int) -> None:
        """A request decodes no more, before `step`."""
        request.is_decoding = False
        del self._orders[bisect_left(self._orders, request.order)]
        self.contexts.remove(request.origin, step)

    def put_off(self, request: Request, step: int) -> None:
        """A request missed the step before `step`: all its tokens come one step later, and it is due at once."""
        request.missed_step = step - 1
        request.origin -= 1
        request.finish_step += 1
        heappush(self._finishes, (request.finish_step, request.order, request))
        self.contexts.add(request.origin, step)
        self.set_due(request, step)

    def set_due(self, request: Request, step: int) -> None:
        """Look at the request again in this step, or in its last one if that comes before."""
        request.due_step = due_step = min(step, request.finish_step)
        self._due[due_step].append(request)

    def take_due(self, step: int) -> list[Request]:
        """The requests that are due in this step, in order of service; they are due no more."""
        due = self._due.pop(step, None)
        if due is None:
            return []
        if len(due) == 1:
            (request,) = due
            return due if request.is_decoding and request.due_step == step else []
        # A request that was put off or preempted may have left an entry behind, so each counts once.
        work = list({r.order: r for r in due if r.is_decoding and r.due_step == step}.values())
        work.sort(key=ORDER)
        return work

    def has_due(self, step: int) -> bool:
        """Whether anybody may be due in this step."""
        return step in self._due

    @property
    def next_due(self) -> int:
        """The next step in which somebody may be due."""
        return min(self._due, default=NO_ORDER)

    @property
    def next_finish(self) -> int:
        """The next step that ends a request."""
        finishes = self._finishes
        while finishes:
            step, order, request = finishes[0]
            if request.is_decoding and request.finish_step == step and request.order == order:
                return step
            heappop(finishes)
        return NO_ORDER
