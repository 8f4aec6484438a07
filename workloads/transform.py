"""Reshape traces: pure functions from trace to trace, which stream as their inputs do.

A reshaped trace can be sent to another process if its input can, as those that are read or made can.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from workloads.ticks import find_tick_s
from workloads.trace import Trace, TraceError, TraceRequest

_TICK_ROWS = 10_000  # rows from which a tick is read: the rest of a trace has the same clock


def slice_rows(trace: Trace, start: int, stop: int | None = None) -> Trace:
    """Rows `start` up to but without `stop`, counted from 0, with the first one's arrival as the new zero.

    Raises `ValueError` where `start` is negative or `stop` comes before it.
    """
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"a slice needs 0 <= start <= stop, got rows {start} to {stop}")
    num_requests = None
    if trace.num_requests is not None:
        num_requests = len(range(trace.num_requests)[start:stop])
    return replace(trace, rows=partial(_rows_between, trace, start, stop), num_requests=num_requests)


def _rows_between(trace: Trace, start: int, stop: int | None) -> Iterator[TraceRequest]:
    first_s = None
    for request in itertools.islice(trace.rows(), start, stop):
        first_s = request.arrival_s if first_s is None else first_s
        yield replace(request, arrival_s=request.arrival_s - first_s)


def slice_time(trace: Trace, start_s: float, stop_s: float | None = None) -> Trace:
    """What arrives in [`start_s`, `stop_s`) seconds, with `start_s` as the new zero.

    Raises `ValueError` where `start_s` is negative or `stop_s` comes before it.
    """
    end_s = np.inf if stop_s is None else stop_s
    if not 0 <= start_s <= end_s:
        raise ValueError(f"a slice needs 0 <= start <= stop, got {start_s} to {stop_s} seconds")
    return replace(trace, rows=partial(_arrivals_between, trace, start_s, end_s), num_requests=None)


def _arrivals_between(trace: Trace, start_s: float, end_s: float) -> Iterator[TraceRequest]:
    for request in trace.rows():
        if request.arrival_s >= end_s:
            return
        if request.arrival_s >= start_s:
            yield replace(request, arrival_s=request.arrival_s - start_s)


def scale_rate(trace: Trace, factor: float) -> Trace:
    """The same requests `factor` times as fast: every arrival divided by it, the burstiness kept.

    Raises `ValueError` where `factor` is not a positive number.
    """
    if not 0 < factor < np.inf:
        raise ValueError(f"a rate is scaled by a positive number, got {factor}")
    return replace(trace, rows=partial(_scaled, trace, factor))


def _scaled(trace: Trace, factor: float) -> Iterator[TraceRequest]:
    for request in trace.rows():
        yield replace(request, arrival_s=request.arrival_s / factor)


def spread_ticks(trace: Trace, seed: int = 0, tick_s: float | None = None) -> Trace:
    """Spread the requests of each stamp over its tick, uniformly at random and in the trace's order.

    A coarse clock tells only in which tick a request came. Of arrivals at a steady rate the times within
    an interval are uniform, so that is how they are drawn; even spacing would be smoother than any real
    traffic and hide queueing. A lone stamp moves for the same reason, and nothing passes the next stamp.
    `tick_s` (seconds) is found in the data where it is not given; a trace without ticks stays as it is.

    Raises `ValueError` where `tick_s` is not a positive number.
    """
    if tick_s is not None and not 0 < tick_s < np.inf:
        raise ValueError(f"a tick is a positive number of seconds, got {tick_s}")
    return replace(trace, rows=partial(_spread, trace, seed, tick_s))


def _spread(trace: Trace, seed: int, tick_s: float | None) -> Iterator[TraceRequest]:
    width_s = _tick_of(trace) if tick_s is None else tick_s
    if width_s is None:
        yield from trace.rows()
        return
    rng = np.random.default_rng(seed)
    for stamp_s, requests, next_s in _by_stamp(trace.rows()):
        room_s = min(width_s, next_s - stamp_s)
        offsets_s = np.sort(rng.random(len(requests))) * room_s
        for request, offset_s in zip(requests, offsets_s.tolist(), strict=True):
            yield replace(request, arrival_s=min(stamp_s + offset_s, next_s))


def _tick_of(trace: Trace) -> float | None:
    return find_tick_s([request.arrival_s for request in itertools.islice(trace.rows(), _TICK_ROWS)])


def _by_stamp(rows: Iterable[TraceRequest]) -> Iterator[tuple[float, list[TraceRequest], float]]:
    """(stamp, its requests, the next stamp) in seconds; infinity comes after the last stamp."""
    groups = itertools.groupby(rows, key=lambda request: request.arrival_s)
    held: tuple[float, list[TraceRequest]] | None = None
    for stamp_s, requests in groups:
        if held is not None:
            yield *held, stamp_s
        held = (stamp_s, list(requests))
    if held is not None:
        yield *held, np.inf


def merge(traces: Sequence[Trace]) -> Trace:
    """All requests of several traces in order of arrival, each trace from its own zero.

    Prefix ids, request ids and sessions of different traces never meet: the first are renumbered, the
    others carry the trace's place in the sequence (`0/17`). Traces that say nothing about prefixes mix
    with any.

    Raises `TraceError` where there is no trace, or where prefix ids stand for different numbers of tokens.
    """
    if not traces:
        raise TraceError("there is no trace to merge")
    blocks = {trace.prefix_block_tokens for trace in traces} - {None}
    if len(blocks) > 1:
        sizes = ", ".join(f"{trace.name}: {trace.prefix_block_tokens}" for trace in traces)
        raise TraceError(f"traces merge only if their prefix ids stand for equally many tokens, got {sizes}")
    counts = [trace.num_requests for trace in traces if trace.num_requests is not None]
    return Trace(
        name="+".join(trace.name for trace in traces),
        prefix_block_tokens=next(iter(blocks), None),
        rows=partial(_merged, tuple(traces)),
        num_requests=sum(counts) if len(counts) == len(traces) else None,
    )


def _merged(traces: Sequence[Trace]) -> Iterator[TraceRequest]:
    parts = [_renamed(trace, index, len(traces)) for index, trace in enumerate(traces)]
    return heapq.merge(*parts, key=lambda request: request.arrival_s)


def _renamed(trace: Trace, index: int, num_traces: int) -> Iterator[TraceRequest]:
    for request in trace.rows():
        yield replace(
            request,
            request_id=f"{index}/{request.request_id}",
            # Interleaved numbers keep the traces apart without a table of the ids seen.
            prefix_ids=tuple(id_ * num_traces + index for id_ in request.prefix_ids),
            session=None if request.session is None else f"{index}/{request.session}",
        )


def sample(trace: Trace, fraction: float, seed: int = 0) -> Trace:
    """A random `fraction` of the requests at their own times; a session is kept or left out as a whole.

    Raises `ValueError` where `fraction` is not in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"a sample keeps a fraction above 0 and up to 1, got {fraction}")
    num_requests = trace.num_requests if fraction == 1 else None
    return replace(trace, rows=partial(_sampled, trace, fraction, seed), num_requests=num_requests)


def _sampled(trace: Trace, fraction: float, seed: int) -> Iterator[TraceRequest]:
    rng = np.random.default_rng(seed)
    for request in trace.rows():
        draw = rng.random() if request.session is None else _uniform(f"{seed}/{request.session}")
        if draw < fraction:
            yield request


def _uniform(name: str) -> float:
    """A number in [0, 1) that a name always gets: no table of sessions has to be kept."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) / 2**56
