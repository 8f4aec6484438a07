"""How far back tokens attend: closed forms against counting."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_configs import Chunk, Everything, Reach, Window

reaches = st.one_of(st.just(Everything()), st.builds(Window, st.integers(1, 40)), st.builds(Chunk, st.integers(1, 40)))


@given(reach=reaches, num_new=st.integers(0, 100), num_computed=st.integers(0, 200))
def test_pairs_are_those_of_each_token_and_what_it_sees(reach: Reach, num_new: int, num_computed: int) -> None:
    one_by_one = sum(reach.seen_before(num_computed + index) + 1 for index in range(num_new))
    assert reach.num_pairs(num_new, num_computed) == one_by_one


@given(reach=reaches, num_computed=st.integers(0, 200))
def test_until_the_next_break_a_token_sees_one_more_each_time(reach: Reach, num_computed: int) -> None:
    one_more = [reach.seen_before(n) == reach.seen_before(n - 1) + 1 for n in range(num_computed + 1, 300)]
    first_break = num_computed + 1 + one_more.index(False) if False in one_more else sys.maxsize
    assert reach.next_break(num_computed) == first_break


def test_window_counts_the_token_itself() -> None:
    assert [Window(4).seen_before(num_computed) for num_computed in (0, 2, 3, 4, 100)] == [0, 2, 3, 3, 3]


def test_chunk_starts_anew_at_its_multiples() -> None:
    assert [Chunk(4).seen_before(num_computed) for num_computed in (0, 3, 4, 5, 103)] == [0, 3, 0, 1, 3]


@pytest.mark.parametrize("reach", [Window, Chunk])
def test_a_reach_of_no_token_is_refused(reach: type) -> None:
    with pytest.raises(ValueError, match="must be at least 1 token, got 0"):
        reach(0)
