"""The picture of a trace is drawn for any trace, however small or even."""

import pytest

from simulator.plots_trace import draw_trace
from workloads import Arrivals, Lengths, Traffic, conversation_demo, describe, synthesize


@pytest.fixture(
    params=[
        conversation_demo(),
        synthesize(Traffic(Arrivals.constant(2), Lengths.fixed(1000), Lengths.fixed(1)), 20),
        synthesize(Traffic(Arrivals(0.01), Lengths(1), Lengths(1)), 20),
        synthesize(Traffic(Arrivals(1), Lengths(1), Lengths(1)), 1),
    ],
    ids=["chats", "even", "over minutes", "one"],
)
def description(request):
    return describe(request.param)


def test_a_picture_is_drawn(description, tmp_path):
    draw_trace(description, tmp_path / "trace.png")
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_without_prefixes_is_drawn_too(make_trace, tmp_path):
    draw_trace(describe(make_trace((0, 10, ()), (1, 20, ()), block=None)), tmp_path / "trace.png")
    assert (tmp_path / "trace.png").stat().st_size > 10_000
