"""Sums over all decoding requests of the tokens that they attend to, without visiting them each step.

A request's context before step `s` is `s + origin` tokens. So the sum of contexts needs only the sum
of origins; what a window or a chunk leaves of it grows by one a step, except where the reach breaks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple, Protocol

__all__ = ["NEVER", "ContextTotals", "DecodeContexts", "Reach"]

NEVER = 1 << 62


class Reach(Protocol):
    """How far back one kind of layer reads (`models_configs.reach`)."""

    @property
    def key(self) -> tuple[str, int] | None:
        """What it is called in KV cache specs."""

    def seen_before(self, num_computed: int) -> int:
        """How many of the `num_computed` tokens before it the next token attends to."""

    def next_break(self, num_computed: int) -> int:
        """The next number of computed tokens at which that does not become one more."""


class ContextTotals(NamedTuple):
    """The sums before one step, in tokens."""

    tokens: int
    window_tokens: tuple[int, ...] = ()
    window_growth: tuple[int, ...] = ()


class DecodeContexts:
    """The contexts of all decoding requests of a replica."""

    def __init__(self, reaches: Iterable[Reach]) -> None:
        self._num_requests = 0
        self._sum_origin = 0
        self._reach_sums = [_ReachSum(reach) for reach in reaches]

    def add(self, origin: int, step: int) -> None:
        """A request decodes from `step` on."""
        self._num_requests += 1
        self._sum_origin += origin
        for reach_sum in self._reach_sums:
            reach_sum.add(origin, step)

    def remove(self, origin: int, step: int) -> None:
        """A request does not decode any more, before `step`."""
        self._num_requests -= 1
        self._sum_origin -= origin
        for reach_sum in self._reach_sums:
            reach_sum.remove(origin, step)

    def advance(self, step: int, num_steps: int) -> None:
        """All requests have decoded a token in each of `num_steps` steps from `step` on."""
        for reach_sum in self._reach_sums:
            reach_sum.advance(step, num_steps)

    @property
    def next_change(self) -> int:
        """The next step before which a sum does not just grow on."""
        return min((reach_sum.next_break for reach_sum in self._reach_sums), default=NEVER)

    def totals(self, step: int) -> ContextTotals:
        """The sums before `step`."""
        tokens, sums = self._sum_origin + step * self._num_requests, self._reach_sums
        if not sums:
            return ContextTotals(tokens)
        return ContextTotals(
            tokens, tuple([total.total for total in sums]), tuple([total.num_growing for total in sums])
        )


class _ReachSum:
    """The sum of what one reach leaves of each context."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.total = 0
        self.num_growing = 0
        self._breaks: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """By step, the origins whose reach breaks before it."""

    @property
    def next_break(self) -> int:
        return min(self._breaks, default=NEVER)

    def add(self, origin: int, step: int) -> None:
        self.total += self._reach.seen_before(step + origin)
        self._watch(origin, step)

    def _watch(self, origin: int, step: int) -> None:
        reach, context = self._reach, step + origin
        if reach.seen_before(context + 1) != reach.seen_before(context):
            self.num_growing += 1
            self._breaks[reach.next_break(context) - origin][origin] += 1

    def remove(self, origin: int, step: int) -> None:
        reach, context = self._reach, step + origin
        self.total -= reach.seen_before(context)
        if reach.seen_before(context + 1) != reach.seen_before(context):
            self.num_growing -= 1
            break_step = reach.next_break(context) - origin
            breaks = self._breaks[break_step]
            breaks[origin] -= 1
            if not breaks[origin]:
                del breaks[origin]
            if not breaks:
                del self._breaks[break_step]

    def advance(self, step: int, num_steps: int) -> None:
        for now in range(step + 1, step + num_steps + 1) if self._breaks else ():
            self.total += self.num_growing
            for origin, count in self._breaks.pop(now, {}).items():
                context = now + origin
                grown = self._reach.seen_before(context - 1) + 1
                self.total += count * (self._reach.seen_before(context) - grown)
                self.num_growing -= count
                for _ in range(count):
                    self._watch(origin, now)
