"""When which replica was what, and what that cost: measured from its lives once a run is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.lives import PAID, UP, State
from simulator.metrics import num_at_once, rounded
from simulator.recorder import REQUEST_COUNTS, REQUEST_TIMES
from simulator.table import Columns

if TYPE_CHECKING:
    from simulator.arrival import Arrival
    from simulator.fleet_replica import Replica

__all__ = ["NOWHERE", "History", "lost_table"]

NOWHERE = -1
"""The replica of a request that was lost while it was at none."""


@dataclass(frozen=True)
class History:
    """What replicas were between two times: from the first arrival until the last request has ended."""

    replicas: Sequence[Replica]
    begin_s: float
    end_s: float

    def table(self) -> dict[str, np.ndarray]:
        """A row for each state that a replica was in, in order: replica, state, start_s, end_s."""
        rows = [
            (number, str(state), start_s, end_s)
            for number, replica in enumerate(self.replicas)
            for state, start_s, end_s in replica.lives.spans(self.begin_s, self.end_s)
        ]
        numbers, states, starts_s, ends_s = zip(*rows, strict=True) if rows else ((), (), (), ())
        return {
            "replica": np.array(numbers, dtype=np.int64),
            "state": np.array(states, dtype=object),
            "start_s": np.array(starts_s, dtype=np.float64),
            "end_s": np.array(ends_s, dtype=np.float64),
        }

    def measures_of(self, replica: Replica) -> dict[str, Any]:
        """Of one replica: the share of the time in which it took requests, what is paid for, what failures cost."""
        up_s = self._seconds(replica, UP)
        return {
            "availability": rounded(up_s / self._span_s) if self._span_s > 0 else None,
            "replica_s": rounded(self._seconds(replica, PAID)),
            "failures": self._num_failures(replica),
            "retries": replica.num_retried,
            "lost_tokens": replica.lost_tokens,
        }

    def measures(self, table: Columns) -> dict[str, Any]:
        """Of all together; `table` is the table above."""
        up_s = sum(self._seconds(replica, UP) for replica in self.replicas)
        return {
            "replicas_up": {
                "mean": rounded(up_s / self._span_s) if self._span_s > 0 else None,
                "max": int(num_over_time(table, UP)[1].max(initial=0)),
            },
            "replica_s": rounded(float(sum(self._seconds(replica, PAID) for replica in self.replicas))),
            "failures": sum(map(self._num_failures, self.replicas)),
            "retries": sum(replica.num_retried for replica in self.replicas),
            "lost_tokens": sum(replica.lost_tokens for replica in self.replicas),
        }

    @property
    def _span_s(self) -> float:
        return self.end_s - self.begin_s

    def _seconds(self, replica: Replica, states: frozenset[State]) -> float:
        return replica.lives.seconds(states, self.begin_s, self.end_s)

    def _num_failures(self, replica: Replica) -> int:
        changes = replica.lives.changes
        return sum(state is State.FAILED and self.begin_s <= at_s <= self.end_s for at_s, state in changes)


def num_over_time(table: Columns, states: frozenset[State]) -> tuple[np.ndarray, np.ndarray]:
    """(times [changes], how many replicas are in one of these states from then on [changes])."""
    is_in = np.isin(table["state"].astype(str), [str(state) for state in states])
    return num_at_once(table["start_s"][is_in], table["end_s"][is_in])


def lost_table(arrivals: Sequence[Arrival], reason: str) -> dict[str, np.ndarray]:
    """The rows of requests that were lost while they waited for a replica, as a recorder would have written them."""
    rows = [arrival.row for arrival in arrivals]
    columns: dict[str, np.ndarray] = {"request_id": np.array([row.request_id for row in rows], dtype=object)}
    columns |= {name: np.full(len(rows), np.nan) for name in REQUEST_TIMES}
    columns |= {name: np.zeros(len(rows), dtype=np.int64) for name in REQUEST_COUNTS}
    columns["arrival_s"] = np.array([row.arrival_s for row in rows], dtype=np.float64)
    for name in ("prompt_tokens", "output_tokens", "priority"):
        columns[name] = np.array([getattr(row, name) for row in rows], dtype=np.int64)
    columns["session"] = np.array([row.session for row in rows], dtype=object)
    columns["status"] = np.full(len(rows), "lost", dtype=object)
    columns["reason"] = np.full(len(rows), reason, dtype=object)
    return columns
