"""Tables of kernel times that fill themselves: measured where they are asked for first, interpolated in between.

Asking for a kernel's time takes 100 microseconds and more, reading a table less than one. There are six nodes to a
doubling of the size; at small sizes every whole number is one.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

__all__ = ["Curve", "Kernels", "Surface"]

NODES_PER_DOUBLING = 6
NUM_DOUBLINGS = 24
NODES = sorted({0, *(round(2 ** (nth / NODES_PER_DOUBLING)) for nth in range(NUM_DOUBLINGS * NODES_PER_DOUBLING + 1))})
LAST = len(NODES) - 2


class Curve:
    """Seconds by one size; beyond the last node as between the last two."""

    def __init__(self, measure_s: Callable[[int], float]) -> None:
        self._node_s = cache(measure_s)
        self._lines: list[tuple[int, float, float] | None] = [None] * (LAST + 1)
        """From each node to the next: size and seconds where it begins, seconds for each further unit of size."""

    def at(self, size: float) -> float:
        """Seconds, interpolated."""
        index = bisect_right(NODES, size) - 1
        line = self._lines[index] if index <= LAST else None
        start, start_s, slope_s = line or self._line(min(index, LAST))
        return start_s + (size - start) * slope_s

    def _line(self, index: int) -> tuple[int, float, float]:
        start, end = NODES[index], NODES[index + 1]
        start_s = self._node_s(start)
        line = self._lines[index] = start, start_s, (self._node_s(end) - start_s) / (end - start)
        return line


class Surface:
    """Seconds by two sizes."""

    def __init__(self, measure_s: Callable[[int, int], float]) -> None:
        self._node_s = cache(measure_s)
        self._along: dict[int, Curve] = {}

    def along(self, first: int) -> Curve:
        """Seconds by the second size, where the first is this one."""
        curve = self._along.get(first)
        if curve is None:
            curve = self._along[first] = Curve(lambda second: Curve(lambda node: self._node_s(node, second)).at(first))
        return curve


class Kernels(NamedTuple):
    """The kernels of one model on one server. Attention has tables of its own, because it depends on contexts."""

    decode: Curve
    """By requests that compute a token each: all but attention and logits, as a CUDA graph of decodes runs it."""
    prefill: Curve
    """By tokens: the same in a step with prompts."""
    logits: Curve
    """By requests."""
    prefill_attention: Surface
    """By new tokens of one prompt and those computed before."""
    decode_attention: tuple[tuple[int | None, Surface], ...]
    """By requests and the mean of what each attends to. One for each reach of the model, by its position (None:
    everything)."""

    def probe(self, *sizes: int) -> None:
        """Ask for a time of each kind at these sizes: whatever cannot be answered raises now."""
        for size in sizes:
            for curve in (self.decode, self.prefill, self.logits):
                curve.at(size)
            for surface in (self.prefill_attention, *(table for _, table in self.decode_attention)):
                surface.along(size).at(size)
