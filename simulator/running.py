"""How far requests are that hold blocks, one by one: for those who look in, not for the steps themselves."""

from collections.abc import Iterator

from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["contexts_after_step", "contexts_before_step", "idle_in_step"]

Contexts = Iterator[tuple[Request, int]]


def contexts_after_step(scheduler: Scheduler) -> Contexts:
    """(request, tokens computed once all planned steps are and all loads are there) for all that hold blocks."""
    for request in scheduler.running.values():
        yield request, scheduler.step + request.origin if request.is_decoding else request.computed
    for request in scheduler.held:
        yield request, request.computed


def contexts_before_step(scheduler: Scheduler) -> Contexts:
    """(request, tokens computed before the step planned last) for all that hold blocks."""
    planned = scheduler.plan.num_tokens()
    for request, num_computed in contexts_after_step(scheduler):
        yield request, num_computed - planned.get(request.order, int(request.is_decoding))


def idle_in_step(scheduler: Scheduler) -> Contexts:
    """The same for those of them that compute nothing in that step."""
    in_chunks = {request.order for request, _ in scheduler.plan.chunks}
    for order, request in scheduler.prefilling.items():
        if order not in in_chunks:
            yield request, request.computed
    for request in scheduler.held:
        yield request, request.computed
    for request in scheduler.plan.stalled:
        yield request, scheduler.step + request.origin
    for plan in scheduler.in_flight:
        if plan is not scheduler.plan:
            for request in plan.finishing:
                if request.is_running:
                    yield request, request.computed
