"""Say what is in a trace: size, rate, lengths, how much a cache could save, and what looks wrong."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workloads.ticks import find_tick_s
from workloads.trace import Trace, TraceError, TraceRequest

_COARSE_TICK_S = 0.1  # a few engine steps: a finer clock does not show in a TTFT
_MIN_INTERVALS, _MAX_INTERVALS = 10, 120
_REQUESTS_PER_INTERVAL = 5  # on average and at least: with fewer, bars show chance rather than traffic
_INTERVALS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 86400)
_HISTOGRAM_BINS = 48
_MIN_ROWS_TO_JUDGE_IDS = 3

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Lengths of prompts or outputs, in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` requests have a length in [`edges[i]`, `edges[i + 1]`) tokens; edges grow geometrically."""

    edges: IntArray
    counts: IntArray


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """What `describe` found. The series have one entry per `interval_s` seconds, from the trace's start."""

    name: str
    num_requests: int
    span_s: float  # first to last arrival
    rate_per_s: float  # of the gaps between arrivals; 0 where all arrive at once
    interarrival_cv: float  # standard deviation of the gaps over their mean: 1 for Poisson, 0 for a metronome
    prompt: LengthStats
    output: LengthStats
    prompt_tokens_total: int
    block_size: int  # tokens; hits are whole blocks of the engine
    prefix_block_tokens: int | None
    ideal_hit_tokens: int | None  # with a cache that forgets nothing; None: the trace says nothing about prefixes
    ideal_hit_ratio: float | None  # of the prompt tokens
    warnings: tuple[str, ...]  # one sentence each
    interval_s: float
    arrivals_per_interval: IntArray
    prompt_tokens_per_interval: IntArray
    hit_tokens_per_interval: IntArray
    prompt_histogram: Histogram
    output_histogram: Histogram


def describe(trace: Trace, block_size: int = 16) -> TraceDescription:
    """Walk over the trace once and describe it; `block_size` is the engine's, in tokens.

    A request's ideal hit is its longest run of leading prefix ids that earlier requests have left behind,
    in whole blocks of the engine. Its last prompt token is always recomputed, for the first output token
    needs it. Memory grows by 32 bytes a row, and with the number of different prefix ids.

    Raises `TraceError` for a trace without requests, and what walking over the trace raises; `ValueError`
    where `block_size` is below 1.
    """
    if block_size < 1:
        raise ValueError(f"a block holds at least 1 token, got {block_size}")
    seen = _SeenPrefixes(trace.prefix_block_tokens or 1, block_size)
    arrivals_s, prompts, outputs, hits = _columns(trace, seen)
    ordered_s = np.sort(arrivals_s)
    span_s = float(ordered_s[-1] - ordered_s[0])
    gaps_s = np.diff(ordered_s)
    interval_s, interval = _intervals(arrivals_s, span_s)
    has_prefixes = trace.prefix_block_tokens is not None
    return TraceDescription(
        name=trace.name,
        num_requests=len(arrivals_s),
        span_s=span_s,
        rate_per_s=len(gaps_s) / span_s if span_s > 0 else 0.0,
        interarrival_cv=float(gaps_s.std() / gaps_s.mean()) if span_s > 0 else 0.0,
        prompt=_length_stats(prompts),
        output=_length_stats(outputs),
        prompt_tokens_total=int(prompts.sum()),
        block_size=block_size,
        prefix_block_tokens=trace.prefix_block_tokens,
        ideal_hit_tokens=int(hits.sum()) if has_prefixes else None,
        ideal_hit_ratio=float(hits.sum() / max(1, prompts.sum())) if has_prefixes else None,
        warnings=tuple(_wrong_arrivals(arrivals_s) + _wrong_lengths(prompts, outputs) + seen.what_looks_wrong()),
        interval_s=interval_s,
        arrivals_per_interval=np.bincount(interval),
        prompt_tokens_per_interval=_sums(interval, prompts),
        hit_tokens_per_interval=_sums(interval, hits),
        prompt_histogram=_histogram(prompts),
        output_histogram=_histogram(outputs),
    )


def _columns(trace: Trace, seen: _SeenPrefixes) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
    """[num_requests] arrivals in seconds, prompt tokens, output tokens, ideal hit tokens."""
    arrivals_s, prompts, outputs, hits = array("d"), array("q"), array("q"), array("q")
    for request in trace:
        arrivals_s.append(request.arrival_s)
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
        hits.append(seen.hit_tokens(request))
    if not arrivals_s:
        raise TraceError(f"{trace.name}: holds no request")
    return np.asarray(arrivals_s), np.asarray(prompts), np.asarray(outputs), np.asarray(hits)


@dataclass(slots=True)
class _SeenPrefixes:
    """The prefix ids that the requests so far have left in a cache that forgets nothing."""

    prefix_block_tokens: int
    block_size: int
    parents: dict[int, int | None] = field(default_factory=dict)  # id -> the id before it, None at the start
    num_rows_with_ids: int = 0
    num_uncredited: int = 0  # prompts whose last block is named by no id because it is partial
    uncredited_tokens: int = 0
    num_misplaced: int = 0  # ids that stand after different ids in different rows
    longest_prompt: int = 0  # ids
    has_shrunk: bool = False  # some prompt has fewer ids than one before it, so they are not one conversation

    def hit_tokens(self, request: TraceRequest) -> int:
        """The tokens of the prompt that need no computing; the request's own ids are seen from now on."""
        ids = request.prefix_ids
        if not ids:
            return 0
        num_hit = 0
        for id_ in ids:
            if id_ not in self.parents:
                break
            num_hit += 1
        self._look_at(request)
        self._leave_behind(request)
        hit_tokens = min(num_hit * self.prefix_block_tokens, request.prompt_tokens - 1)
        return max(0, hit_tokens) // self.block_size * self.block_size

    def _leave_behind(self, request: TraceRequest) -> None:
        # The last output token is never an input, so the engine holds no KV of it.
        num_computed = request.prompt_tokens + request.output_tokens - 1
        parent = None
        for id_ in request.prefix_ids[: max(0, num_computed) // self.prefix_block_tokens]:
            if self.parents.setdefault(id_, parent) != parent:
                self.num_misplaced += 1
            parent = id_

    def _look_at(self, request: TraceRequest) -> None:
        self.num_rows_with_ids += 1
        num_whole, rest_tokens = divmod(request.prompt_tokens, self.prefix_block_tokens)
        if len(request.prefix_ids) == num_whole:
            self.has_shrunk |= num_whole < self.longest_prompt
            self.longest_prompt = max(self.longest_prompt, num_whole)
            self.num_uncredited += rest_tokens > 0
            self.uncredited_tokens += rest_tokens

    def what_looks_wrong(self) -> list[str]:
        """One sentence per finding about the ids."""
        if not self.num_rows_with_ids:
            return ["No request has prefix ids: a prefix cache finds nothing to reuse."]
        found = []
        if self.num_misplaced:
            found.append(
                f"{self.num_misplaced:,} prefix ids follow different ids in different requests: they look local to "
                "a request or session, while an id must name the whole prompt up to its block's end."
            )
        elif self._are_all_one_prompt():
            found.append(
                "Every prompt is a beginning of the longest one: the prefix ids look local to a request or session, "
                "and hits between requests may not be real."
            )
        if self.num_uncredited and self.prefix_block_tokens > self.block_size:
            mean_tokens = self.uncredited_tokens / self.num_uncredited
            found.append(
                f"{self.num_uncredited:,} prompts end inside a block of {self.prefix_block_tokens} tokens: that rest, "
                f"{mean_tokens:,.0f} tokens on average, has no usable prefix id and is never credited as a hit."
            )
        return found

    def _are_all_one_prompt(self) -> bool:
        """Ids that number each row's blocks from the same start look like one prompt cut to many lengths."""
        is_enough = self.num_rows_with_ids >= _MIN_ROWS_TO_JUDGE_IDS and self.has_shrunk
        return is_enough and len(self.parents) == self.longest_prompt


def _wrong_arrivals(arrivals_s: FloatArray) -> list[str]:
    found = []
    num_back = int((np.diff(arrivals_s) < 0).sum())
    if num_back:
        found.append(f"Arrivals run backwards at {num_back:,} of {len(arrivals_s):,} requests: sort the trace.")
    stamps = Counter(arrivals_s.tolist())
    if len(stamps) == 1 and len(arrivals_s) > 1:
        found.append("All requests arrive at once: the trace has no rate and no burstiness.")
    tick_s = find_tick_s(arrivals_s)
    if tick_s is not None and tick_s >= _COARSE_TICK_S:
        num_shared = sum(count for count in stamps.values() if count > 1)
        found.append(
            f"Arrivals sit on ticks of {tick_s:g} s: {num_shared:,} of {len(arrivals_s):,} requests share their stamp, "
            f"up to {max(stamps.values()):,} at once. Spread them inside the tick, else TTFT measures the clock."
        )
    return found


def _wrong_lengths(prompts: IntArray, outputs: IntArray) -> list[str]:
    found = []
    for lengths, what in ((prompts, "prompt"), (outputs, "output")):
        num_empty = int((lengths < 1).sum())
        if num_empty:
            where = f"{num_empty:,} of {len(lengths):,} requests"
            found.append(f"No {what} tokens in {where}: they were never served, leave them out.")
    return found


def _length_stats(tokens: IntArray) -> LengthStats:
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, (50, 90, 99)))
    return LengthStats(mean=float(tokens.mean()), p50=p50, p90=p90, p99=p99, max=int(tokens.max()))


def _histogram(tokens: IntArray) -> Histogram:
    # Some room on both sides, so that equal lengths still make a range.
    low = max(1, int(tokens.min() / 1.5))
    high = max(low, int(tokens.max())) * 1.5 + 1
    edges = np.unique(np.rint(np.geomspace(low, high, _HISTOGRAM_BINS + 1)).astype(np.int64))
    counts, _ = np.histogram(tokens, bins=edges)
    return Histogram(edges=edges, counts=counts.astype(np.int64))


def _intervals(arrivals_s: FloatArray, span_s: float) -> tuple[float, IntArray]:
    """A round interval that gives a readable number of them, in seconds, and each arrival's interval."""
    num_wanted = min(max(_MIN_INTERVALS, len(arrivals_s) // _REQUESTS_PER_INTERVAL), _MAX_INTERVALS)
    interval_s = next((s for s in _INTERVALS_S if span_s / s <= num_wanted), span_s / num_wanted) if span_s else 1.0
    # An unordered trace may begin with an arrival that is not its earliest.
    since_start_s = arrivals_s - min(0.0, float(arrivals_s.min()))
    return interval_s, (since_start_s // interval_s).astype(np.int64)


def _sums(interval: IntArray, tokens: IntArray) -> IntArray:
    # Sums of whole numbers below 2**53 are exact in the floats that bincount adds.
    return np.bincount(interval, weights=tokens).astype(np.int64)
