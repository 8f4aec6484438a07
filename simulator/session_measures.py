"""Measure sessions: a pure function of their table (see `simulator.result.Result.sessions`)."""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from simulator.metrics import Floats, distribution, num_at_once, rounded
from simulator.result import Result
from simulator.table import Columns

__all__ = ["open_at_once", "summarize_sessions", "with_sessions"]

AnyResult = TypeVar("AnyResult", bound=Result)


def with_sessions(result: AnyResult, sessions: Columns | None) -> AnyResult:
    """The same run, with the table of its sessions and what it measures, if there is one."""
    if sessions is None:
        return result
    return replace(
        result,
        tables={**result.tables, "sessions": sessions},
        summary={**result.summary, "sessions": summarize_sessions(sessions)},
    )


def summarize_sessions(sessions: Columns) -> dict[str, Any]:
    """All measures of sessions as plain values, those over their duration of sessions that have ended.

    A session is in the model while a call of it is in flight, its own or a sub-agent's, queueing included; the rest
    of its time it thinks.
    """
    has_ended = ~np.isnan(sessions["end_s"])
    starts_s, ends_s, model_s = (sessions[name][has_ended] for name in ("start_s", "end_s", "model_s"))
    durations_s = ends_s - starts_s
    total_s = float(durations_s.sum())
    summary = {
        "started": len(has_ended),
        "completed": int(has_ended.sum()),
        "calls": distribution(sessions["num_calls"][has_ended].astype(np.float64)),
        "subagents": int(sessions["num_subagents"].sum()),
        "duration_s": distribution(durations_s),
        "model_s": distribution(model_s),
        "thinking_s": distribution(durations_s - model_s),
        "model_share": float(model_s.sum()) / total_s if total_s else None,
        "at_once": _at_once(sessions),
    }
    return {key: rounded(value) for key, value in summary.items()}


def _at_once(sessions: Columns) -> dict[str, float | int | None]:
    """Sessions that were open: on average from the first start to the last end, and at most."""
    times_s, num_open = open_at_once(sessions)
    if not len(times_s) or times_s[-1] == times_s[0]:
        return {"mean": None, "max": None}
    area_s = float((num_open[:-1] * np.diff(times_s)).sum())
    return {"mean": area_s / float(times_s[-1] - times_s[0]), "max": int(num_open.max())}


def open_at_once(sessions: Columns) -> tuple[Floats, Floats]:
    """(different times in seconds, in order; how many sessions are open from each on)."""
    ends_s = sessions["end_s"]
    return num_at_once(sessions["start_s"], ends_s[~np.isnan(ends_s)])
