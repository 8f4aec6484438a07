"""Tables of kernel times: measured where they are asked for, interpolated in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernel_tables import NODES, Curve, Surface

SIZES = st.integers(0, 200_000)


def a_line(size: float) -> float:
    return 3.0 + 0.25 * size


@given(SIZES)
def test_what_is_linear_is_read_exactly(size: int) -> None:
    assert Curve(a_line).at(size) == pytest.approx(a_line(size))


@given(SIZES, SIZES)
def test_what_is_linear_in_both_sizes_is_read_exactly(first: int, second: int) -> None:
    def measure_s(one: int, other: int) -> float:
        return 1.0 + 0.5 * one + 0.125 * other + 0.01 * one * other

    assert Surface(measure_s).along(first).at(second) == pytest.approx(measure_s(first, second))


@given(st.integers(64, 100_000))
def test_a_square_is_read_within_a_part_of_two_hundred(size: int) -> None:
    """There are six nodes to a doubling: a chord lies above a parabola by an eighth of the square of its width."""
    assert Curve(lambda node: float(node**2)).at(size) == pytest.approx(size**2, rel=0.005)


def test_small_sizes_are_all_nodes() -> None:
    assert NODES[:7] == [0, 1, 2, 3, 4, 5, 6]


def test_a_kernel_is_measured_once_wherever_it_is_read() -> None:
    measured: list[int] = []

    def measure_s(size: int) -> float:
        measured.append(size)
        return float(size)

    curve = Curve(measure_s)
    for size in (100, 101, 102, 101, 100):
        curve.at(size)
    assert sorted(measured) == [91, 102, 114]


def test_beyond_the_last_node_a_line_goes_on() -> None:
    assert Curve(a_line).at(10 * NODES[-1]) == pytest.approx(a_line(10 * NODES[-1]))
