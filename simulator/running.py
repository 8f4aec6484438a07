"""How far requests are that hold blocks, one by one: for those who look in, not for the steps themselves."""

from collections.abc import Iterator, Sequence

from simulator.plan import Plan
from simulator.request import Request
from simulator.scheduler import Scheduler

__all__ = ["contexts_after_step", "contexts_before_step", "generated_tokens", "holding", "idle_in_step"]

Contexts = Iterator[tuple[Request, int]]


def holding(scheduler: Scheduler) -> list[Request]:
    """All that hold blocks: who runs, and who stands aside."""
    return [*scheduler.running.values(), *scheduler.held]


def contexts_after_step(scheduler: Scheduler) -> Contexts:
    """(request, tokens computed once all planned steps are and all loads are there) for all that hold blocks."""
    for request in holding(scheduler):
        yield request, scheduler.step + request.origin if request.is_decoding else request.computed


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


def generated_tokens(scheduler: Scheduler) -> Contexts:
    """(request, output tokens that it has got) for all that are there, running or waiting.

    Tokens of steps in flight are not there yet. It looks at every request, and at each step in flight for each.
    """
    for request, num_computed in contexts_after_step(scheduler):
        if num_computed < request.known_tokens:  # in its prompt, or in tokens that it had before it was preempted
            yield request, request.known_tokens - request.prompt_tokens
        else:
            yield request, num_computed + 1 - request.prompt_tokens - _tokens_in_flight(request, scheduler.in_flight)
    for request in scheduler.waiting:
        yield request, _tokens_while_waiting(request, scheduler)


def _tokens_while_waiting(request: Request, scheduler: Scheduler) -> int:
    """A request that was preempted may still get the token of the step before, if that is in flight."""
    earlier = [plan for plan in scheduler.in_flight if plan is not scheduler.plan]
    if any(request in plan.finishing for plan in earlier):
        return request.output_tokens - _tokens_in_flight(request, earlier)
    num_tokens = request.known_tokens - request.prompt_tokens
    # In its prompt it got no token; who decodes has known all tokens up to the planned step's.
    was_decoding = num_tokens > 0 and request.known_tokens == scheduler.step + request.origin
    if request in scheduler.plan.preempted and was_decoding:
        num_tokens -= _tokens_in_flight(request, earlier)
    return num_tokens


def _tokens_in_flight(request: Request, plans: Sequence[Plan]) -> int:
    """Output tokens that the planned steps bring to a request that is past its prompt after them."""
    num_tokens = 0
    for plan in plans:
        if request in plan.prompt_done:
            num_tokens = 1  # what came before were chunks of its prompt
        elif request not in plan.stalled:
            num_tokens += plan.num_steps
        if request in plan.finishing:
            break
    return num_tokens
