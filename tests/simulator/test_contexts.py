"""Sums over decoding requests, kept without a look at each of them: the same as with one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_configs import Chunk, Everything, Window
from simulator.contexts import ContextTotals, DecodeContexts

REACHES = {
    "none": (),
    "window": (Window(7),),
    "window of one": (Window(1),),
    "two windows": (Window(3), Window(20)),
    "chunk": (Chunk(8),),
    "chunk of one": (Chunk(1),),
    "all": (Window(5), Chunk(6), Everything()),
}


class Counted:
    """The same sums by brute force: a context for each request."""

    def __init__(self, reaches) -> None:
        self.reaches = reaches
        self.step = 0
        self.origins: list[int] = []

    def sums(self, after: int = 0) -> tuple[int, tuple[int, ...]]:
        """(tokens, those within each reach) before the step `after` the current one."""
        contexts = [self.step + after + origin for origin in self.origins]
        return sum(contexts), tuple(sum(map(reach.seen_before, contexts)) for reach in self.reaches)


def after_steps(totals: ContextTotals, num_requests: int, num_steps: int) -> tuple[int, tuple[int, ...]]:
    """The sums that totals foretell while nothing but their growth changes them."""
    grown = zip(totals.window_tokens, totals.window_growth, strict=True)
    return totals.tokens + num_steps * num_requests, tuple(sum_ + num_steps * growth for sum_, growth in grown)


EVENTS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 50)),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("advance"), st.integers(1, 30)),
)


@pytest.mark.parametrize("name", REACHES)
@given(events=st.lists(EVENTS, max_size=40))
def test_sums_are_those_of_a_look_at_each_request(name, events):
    """Requests come with any context, go when they like, and all others decode on in between.

    Up to the next change the sums grow by equal steps, which is what a row of steps relies on.
    """
    contexts, counted = DecodeContexts(REACHES[name]), Counted(REACHES[name])
    for what, number in events:
        if what == "add":
            counted.origins.append(number - counted.step)
            contexts.add(number - counted.step, counted.step)
        elif what == "remove" and counted.origins:
            contexts.remove(counted.origins.pop(number % len(counted.origins)), counted.step)
        elif what == "advance":
            contexts.advance(counted.step, number)
            counted.step += number
        for after in range(max(1, min(contexts.next_change - counted.step, 40))):
            assert after_steps(contexts.totals(counted.step), len(counted.origins), after) == counted.sums(after)


def test_a_window_is_full_and_then_slides():
    """Contexts of 2 and 9 tokens before a window of 5: the next token sees two of the first, four of the second."""
    contexts = DecodeContexts([Window(5)])
    contexts.add(2, step=0)
    contexts.add(9, step=0)
    assert contexts.totals(0) == ContextTotals(11, window_tokens=(6,), window_growth=(1,))
    contexts.advance(0, num_steps=3)
    assert contexts.totals(3) == ContextTotals(17, window_tokens=(8,), window_growth=(0,))


def test_a_chunk_is_forgotten_at_its_end():
    contexts = DecodeContexts([Chunk(8)])
    contexts.add(6, step=0)
    contexts.advance(0, num_steps=2)
    assert contexts.totals(2) == ContextTotals(8, window_tokens=(0,), window_growth=(1,))
