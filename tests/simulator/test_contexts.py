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

    def contexts(self, after: int = 0) -> list[int]:
        return [self.step + after + origin for origin in self.origins]

    def totals(self, after: int = 0) -> ContextTotals:
        now, next_ = self.contexts(after), self.contexts(after + 1)
        seen = [[reach.seen_before(context) for context in now] for reach in self.reaches]
        grown = [
            sum(reach.seen_before(context) > before for context, before in zip(next_, each, strict=True))
            for reach, each in zip(self.reaches, seen, strict=True)
        ]
        return ContextTotals(sum(now), tuple(map(sum, seen)), tuple(grown))


EVENTS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 50)),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("advance"), st.integers(1, 30)),
)


@pytest.mark.parametrize("name", REACHES)
@given(events=st.lists(EVENTS, max_size=40))
def test_sums_are_those_of_a_look_at_each_request(name, events):
    """Requests come with any context, go when they like, and all others decode on in between."""
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
        assert contexts.totals(counted.step) == counted.totals()


@pytest.mark.parametrize("name", REACHES)
@given(computed=st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_until_the_next_change_sums_just_grow(name, computed):
    """What a row of equal steps relies on: `growth` more in every step before `next_change`."""
    reaches = REACHES[name]
    contexts, counted = DecodeContexts(reaches), Counted(reaches)
    for context in computed:
        contexts.add(context, 0)
        counted.origins.append(context)
    first = contexts.totals(0)
    for after in range(1, min(contexts.next_change, 40)):
        grown = zip(first.window_tokens, first.window_growth, strict=True)
        assert counted.totals(after).window_tokens == tuple(tokens + after * growth for tokens, growth in grown)


def test_a_window_is_full_and_then_slides():
    """Contexts of 2 and 9 tokens before a window of 5: the next token sees two of the first, four of the second."""
    contexts = DecodeContexts([Window(5)])
    contexts.add(2, step=0)
    contexts.add(9, step=0)
    assert contexts.totals(0) == ContextTotals(11, window_tokens=(6,), window_growth=(1,))
    contexts.advance(0, num_steps=2)
    assert contexts.totals(2) == ContextTotals(15, window_tokens=(8,), window_growth=(0,))


def test_a_chunk_is_forgotten_at_its_end():
    contexts = DecodeContexts([Chunk(8)])
    contexts.add(6, step=0)
    contexts.advance(0, num_steps=2)
    assert contexts.totals(2) == ContextTotals(8, window_tokens=(0,), window_growth=(1,))
