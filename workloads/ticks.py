"""Find the clock tick on which a trace's arrivals were recorded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_CLOCK_S = 1e-3  # gaps are compared in milliseconds: no public trace ticks faster, and jitter hides below
_TOLERANCE = 0.01  # of a tick: Mooncake's 3 s ticks wander by a millisecond or two
_MIN_SHARE_ON_TICK = 0.9
_MIN_GAPS = 3  # below that any gap looks like a tick


def find_tick_s(arrivals_s: npt.ArrayLike) -> float | None:
    """The tick of a coarse clock in seconds, or None where the arrivals show none.

    `arrivals_s` are ordered stamps in seconds, one dimension. A tick is the most frequent gap between
    different stamps, if nearly all gaps are whole multiples of it and at least two stamps are equal.
    """
    stamps = np.asarray(arrivals_s, dtype=float)
    gaps_s = np.diff(np.unique(stamps))
    if len(gaps_s) < _MIN_GAPS or len(gaps_s) + 1 == len(stamps):
        return None
    gaps_ms, counts = np.unique(np.rint(gaps_s / _CLOCK_S), return_counts=True)
    tick_s = float(gaps_ms[np.argmax(counts)]) * _CLOCK_S
    if tick_s == 0:
        return None
    ticks = gaps_s / tick_s
    is_on_tick = (np.abs(ticks - np.rint(ticks)) <= _TOLERANCE) & (ticks > 1 - 2 * _TOLERANCE)
    return tick_s if is_on_tick.mean() >= _MIN_SHARE_ON_TICK else None
