"""Make traffic from a model: arrivals x lengths x shared prefixes x conversations.

```python
traffic = Traffic(
    arrivals=Arrivals.poisson(rate_per_s=2.0),
    prompts=Lengths.lognormal(mean_tokens=800, cv=1.0),
    outputs=Lengths.fixed(200),
)
trace = synthesize(traffic, num_requests=10_000, seed=1)
```

Each purpose draws from a random stream of its own, so that a change of the output lengths, say, moves
neither an arrival nor a prompt, and two plans compare under the same traffic.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from workloads.trace import Trace, TraceRequest

PREFIX_BLOCK_TOKENS = 16  # tokens per prefix id of synthetic traces: the usual block of an engine

_CHUNK = 4096  # conversations drawn at a time; part of what a seed means, as chunks of streams interleave
_MAX_TOKENS = 10**9  # what a lognormal tail is cut to
_MAX_TURNS = 1000  # what a geometric tail is cut to

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When conversations (single requests, where there are none) begin: gamma-distributed gaps."""

    rate_per_s: float
    cv: float = 1.0  # standard deviation of the gaps over their mean: 1 is Poisson, 0 a metronome, above 1 bursts

    def __post_init__(self) -> None:
        _require(0 < self.rate_per_s < math.inf, f"rate_per_s must be a positive number, got {self.rate_per_s}")
        _require(0 <= self.cv < math.inf, f"cv must be a number of at least 0, got {self.cv}")

    @classmethod
    def poisson(cls, rate_per_s: float) -> Self:
        """Independent users."""
        return cls(rate_per_s)

    @classmethod
    def gamma(cls, rate_per_s: float, cv: float) -> Self:
        """Burstier (`cv` above 1) or smoother (below 1) than independent users."""
        return cls(rate_per_s, cv)

    @classmethod
    def constant(cls, rate_per_s: float) -> Self:
        """Equal gaps."""
        return cls(rate_per_s, cv=0.0)

    def starts_s(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Times in seconds, `_CHUNK` at a time and without end; the first one is 0."""
        last_s = 0.0
        for first in itertools.count(step=_CHUNK):
            if self.cv == 0:
                yield np.arange(first, first + _CHUNK) / self.rate_per_s
                continue
            gaps_s = rng.gamma(self.cv**-2, self.cv**2 / self.rate_per_s, size=_CHUNK)
            if first == 0:
                gaps_s[0] = 0.0
            starts_s = last_s + np.cumsum(gaps_s)
            last_s = float(starts_s[-1])
            yield starts_s


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens: lognormal, or all equal where `cv` is 0; cut to [`min_tokens`, `max_tokens`]."""

    mean_tokens: float  # before the cut
    cv: float = 0.0  # standard deviation over mean
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.mean_tokens <= _MAX_TOKENS:
            raise ValueError(f"mean_tokens must be between 1 and {_MAX_TOKENS:,}, got {self.mean_tokens}")
        _require(0 <= self.cv < math.inf, f"cv must be a number of at least 0, got {self.cv}")
        _require(self.min_tokens >= 1, f"min_tokens must be at least 1, got {self.min_tokens}")
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens must be at least min_tokens ({self.min_tokens}), got {self.max_tokens}")

    @classmethod
    def fixed(cls, tokens: int) -> Self:
        """Always `tokens`."""
        return cls(tokens)

    @classmethod
    def lognormal(cls, mean_tokens: float, cv: float, max_tokens: int | None = None) -> Self:
        """Many short, few long, as measured lengths are; a `cv` of 1 is typical."""
        return cls(mean_tokens, cv, max_tokens=max_tokens)

    def draw(self, rng: np.random.Generator, num: int) -> IntArray:
        """[num] lengths in tokens."""
        tokens = np.rint(_lognormal(rng, self.mean_tokens, self.cv, num))
        return np.clip(tokens, self.min_tokens, self.max_tokens or _MAX_TOKENS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Beginnings that many prompts share (system prompts, documents), put before a prompt's own tokens.

    The k-th most popular of `num_prefixes` is chosen with a weight of k ** -`zipf_exponent`.
    """

    num_prefixes: int
    lengths: Lengths
    zipf_exponent: float = 1.0  # 0: all equally popular
    share: float = 1.0  # the fraction of conversations that begin with one

    def __post_init__(self) -> None:
        _require(self.num_prefixes >= 1, f"num_prefixes must be at least 1, got {self.num_prefixes}")
        _require(0 <= self.zipf_exponent < math.inf, f"zipf_exponent must be at least 0, got {self.zipf_exponent}")
        _require(0 <= self.share <= 1, f"share must be between 0 and 1, got {self.share}")

    def draw(self, rng: np.random.Generator, num: int) -> IntArray:
        """[num] choices: the prefix's rank from 0, -1 for none."""
        weights = np.arange(1, self.num_prefixes + 1) ** -float(self.zipf_exponent)
        ends = np.cumsum(weights) / weights.sum()
        is_shared, at = rng.random((2, num))
        choices = np.minimum(np.searchsorted(ends, at, side="right"), self.num_prefixes - 1)
        return np.where(is_shared < self.share, choices, -1)


@dataclass(frozen=True, slots=True)
class Conversations:
    """Requests that continue one another: a turn's prompt is all that was said so far, and the new tokens.

    The number of turns is geometric. A turn comes when the answer before it has been written, at
    `answer_token_s` a token, and the user has thought: an open trace cannot know how fast it is served.
    """

    mean_turns: float
    think_mean_s: float  # lognormal
    think_cv: float = 1.0
    answer_token_s: float = 0.03  # seconds per output token, a usual inter-token latency
    max_context_tokens: int | None = None  # a conversation ends before a later turn that would pass it

    def __post_init__(self) -> None:
        _require(1 <= self.mean_turns < math.inf, f"mean_turns must be at least 1, got {self.mean_turns}")
        _require(0 <= self.think_mean_s < math.inf, f"think_mean_s must be at least 0, got {self.think_mean_s}")
        _require(0 <= self.think_cv < math.inf, f"think_cv must be a number of at least 0, got {self.think_cv}")
        _require(0 <= self.answer_token_s < math.inf, f"answer_token_s must be at least 0, got {self.answer_token_s}")
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise ValueError(f"max_context_tokens must be at least 1, got {self.max_context_tokens}")


@dataclass(frozen=True, slots=True)
class Traffic:
    """A model of traffic: what `synthesize` draws requests from."""

    arrivals: Arrivals
    prompts: Lengths  # a prompt's own tokens: without a shared prefix, and without the turns before
    outputs: Lengths
    prefixes: SharedPrefixes | None = None
    conversations: Conversations | None = None


def synthesize(traffic: Traffic, num_requests: int, seed: int = 0, name: str = "synthetic") -> Trace:
    """`num_requests` requests drawn from the model, in order of arrival; a longer trace begins with a shorter one.

    Conversations begin at `traffic.arrivals`' rate, so requests come up to `mean_turns` times as fast once
    the first conversations have run their course. Rows are made in chunks as they are asked for.

    Raises `ValueError` where `num_requests` or `seed` is negative.
    """
    _require(num_requests >= 0, f"num_requests must be at least 0, got {num_requests}")
    _require(seed >= 0, f"seed must be at least 0, got {seed}")
    return Trace(
        name=name,
        prefix_block_tokens=PREFIX_BLOCK_TOKENS,
        rows=partial(_rows, traffic, num_requests, seed),
        num_requests=num_requests,
    )


def conversation_demo(seed: int = 0) -> Trace:
    """A workload for those who bring none: chats of a few turns under one system prompt, 2 to 4 requests a second."""
    return synthesize(conversation_demo_traffic(), num_requests=400, seed=seed, name="conversation-demo")


def conversation_demo_traffic() -> Traffic:
    """The model behind it."""
    return Traffic(
        arrivals=Arrivals.poisson(rate_per_s=0.8),
        prompts=Lengths.lognormal(mean_tokens=150, cv=1.2, max_tokens=2000),
        outputs=Lengths.lognormal(mean_tokens=220, cv=0.8, max_tokens=1000),
        prefixes=SharedPrefixes(num_prefixes=1, lengths=Lengths.fixed(1200)),
        conversations=Conversations(mean_turns=4.5, think_mean_s=8.0, max_context_tokens=8000),
    )


# One row per request: a turn of a conversation, which a request without any is the only one of.
_TURN = np.dtype(
    [
        ("arrival_s", np.float64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),
        ("conversation", np.int64),  # counts from 0 in order of their starts
        ("prefix", np.int64),  # the shared prefix's rank, -1 for none
        ("first_own_id", np.int64),  # where the conversation's own prefix ids begin
        ("num_own_ids", np.int64),
        ("think_s", np.float64),  # since the answer before
    ]
)
_Turns = npt.NDArray[np.void]


def _rows(traffic: Traffic, num_requests: int, seed: int) -> Iterator[TraceRequest]:
    source = ConversationSource(traffic, seed)
    shared_ids = [*source.prefix_ids, ()]  # the last one, at rank -1, is no prefix
    has_sessions = traffic.conversations is not None
    row = 0
    for turns in _in_order_of_arrival(source.chunks()):
        columns = turns[: num_requests - row].tolist()
        for arrival_s, prompt_tokens, output_tokens, conversation, prefix, first_id, num_ids, _ in columns:
            row += 1
            yield TraceRequest(
                request_id=str(row),
                arrival_s=arrival_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                prefix_ids=(*shared_ids[prefix], *range(first_id, first_id + num_ids)),
                session=f"c{conversation}" if has_sessions else None,
            )
        if row == num_requests:
            return


def _in_order_of_arrival(chunks: Iterator[tuple[_Turns, float]]) -> Iterator[_Turns]:
    """Turns by arrival: those up to the last start of a chunk are due, as later conversations begin after it."""
    held = np.empty(0, dtype=_TURN)
    for turns, last_start_s in chunks:
        held = np.concatenate([held, turns])
        held = held[np.argsort(held["arrival_s"], kind="stable")]
        num_due = int(np.searchsorted(held["arrival_s"], last_start_s, side="right"))
        yield held[:num_due]
        held = held[num_due:]


class ConversationSource:
    """Whole conversations, a chunk of starts at a time."""

    def __init__(self, traffic: Traffic, seed: int) -> None:
        self._traffic = traffic
        purposes = ("arrivals", "prompts", "outputs", "prefix lengths", "prefixes", "turns", "thinking")
        self._streams = {purpose: random_stream(seed, purpose) for purpose in purposes}
        # Rank -1, no prefix, is the last entry of each.
        self._prefix_tokens = np.zeros(1, dtype=np.int64)
        if traffic.prefixes is not None:
            drawn = traffic.prefixes.lengths.draw(self._streams["prefix lengths"], traffic.prefixes.num_prefixes)
            self._prefix_tokens = np.append(drawn, 0)
        self._prefix_blocks = self._prefix_tokens // PREFIX_BLOCK_TOKENS
        ends = np.cumsum(self._prefix_blocks).tolist()
        # Only whole blocks are shared: the block in which a prefix ends is each conversation's own.
        self.prefix_ids = [
            tuple(range(end - num, end)) for end, num in zip(ends, self._prefix_blocks.tolist(), strict=True)
        ][:-1]
        self._next_id = ends[-1]
        self._next_conversation = 0

    def chunks(self) -> Iterator[tuple[_Turns, float]]:
        """(turns, the start of the chunk's last conversation in seconds), without end."""
        for starts_s in self._traffic.arrivals.starts_s(self._streams["arrivals"]):
            yield self._turns_of(starts_s), float(starts_s[-1])

    def _turns_of(self, starts_s: FloatArray) -> _Turns:
        streams, traffic = self._streams, self._traffic
        num_turns = self._draw_num_turns(len(starts_s))
        of = np.repeat(np.arange(len(starts_s)), num_turns)  # each turn's conversation in the chunk
        is_first = np.diff(of, prepend=-1) > 0
        prefix = self._draw_prefixes(len(starts_s))[of]

        turns = np.zeros(len(of), dtype=_TURN)
        own_tokens = traffic.prompts.draw(streams["prompts"], len(of))
        turns["output_tokens"] = traffic.outputs.draw(streams["outputs"], len(of))
        said = own_tokens + turns["output_tokens"]
        turns["prompt_tokens"] = self._prefix_tokens[prefix] + _sum_so_far(said, is_first) - turns["output_tokens"]
        turns["think_s"] = np.where(is_first, 0.0, np.roll(self._draw_pauses_s(len(of)), 1))
        turns["arrival_s"] = starts_s[of] + self._delays_s(turns, is_first)
        turns["prefix"] = prefix
        turns["conversation"] = self._next_conversation + of
        self._next_conversation += len(starts_s)
        if traffic.conversations is not None:
            turns = self._within_context(turns, is_first, traffic.conversations.max_context_tokens)
            self._name_own_blocks(turns)
        return turns

    def _draw_num_turns(self, num: int) -> IntArray:
        conversations = self._traffic.conversations
        if conversations is None:
            return np.ones(num, dtype=np.int64)
        return np.minimum(self._streams["turns"].geometric(1 / conversations.mean_turns, num), _MAX_TURNS)

    def _draw_prefixes(self, num: int) -> IntArray:
        prefixes = self._traffic.prefixes
        return np.full(num, -1) if prefixes is None else prefixes.draw(self._streams["prefixes"], num)

    def _draw_pauses_s(self, num: int) -> FloatArray:
        conversations = self._traffic.conversations
        if conversations is None:
            return np.zeros(num)
        return _lognormal(self._streams["thinking"], conversations.think_mean_s, conversations.think_cv, num)

    def _delays_s(self, turns: _Turns, is_first: BoolArray) -> FloatArray:
        """Each turn's seconds since the start of its conversation: the answers and pauses before it."""
        conversations = self._traffic.conversations
        if conversations is None:
            return np.zeros(len(turns))
        answers_s = np.roll(turns["output_tokens"] * conversations.answer_token_s, 1)
        return _sum_so_far(np.where(is_first, 0.0, turns["think_s"] + answers_s), is_first)

    @staticmethod
    def _within_context(turns: _Turns, is_first: BoolArray, max_tokens: int | None) -> _Turns:
        if max_tokens is None:
            return turns
        is_kept: BoolArray = is_first | (turns["prompt_tokens"] + turns["output_tokens"] <= max_tokens)
        return turns[is_kept]

    def _name_own_blocks(self, turns: _Turns) -> None:
        """Give each conversation a range of ids of its own, as many as its last turn has blocks."""
        num_blocks = (turns["prompt_tokens"] + turns["output_tokens"]) // PREFIX_BLOCK_TOKENS
        turns["num_own_ids"] = num_blocks - self._prefix_blocks[turns["prefix"]]
        is_last = np.diff(turns["conversation"], append=-1) != 0
        ends = self._next_id + np.cumsum(np.where(is_last, turns["num_own_ids"], 0))
        # Up to and with the turn before a conversation's first, the sum covers all earlier conversations.
        is_first = np.diff(turns["conversation"], prepend=-1) != 0
        firsts = np.concatenate([[self._next_id], ends[:-1]])[is_first]
        turns["first_own_id"] = firsts[np.cumsum(is_first) - 1]
        self._next_id = int(ends[-1])


def _sum_so_far(values: npt.NDArray[_Number], is_first: BoolArray) -> npt.NDArray[_Number]:
    """Running sums that start anew at each conversation's first turn."""
    sums = np.cumsum(values)
    before_first = (sums - values)[is_first]
    return np.asarray(sums - before_first[np.cumsum(is_first) - 1])


def _lognormal(rng: np.random.Generator, mean: float, cv: float, num: int) -> FloatArray:
    """[num] lognormal numbers with that mean and standard deviation over mean; a mean of 0 gives zeros."""
    if mean == 0 or cv == 0:
        return np.full(num, float(mean))
    variance = math.log1p(cv**2)
    return rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), num)


def random_stream(seed: int, purpose: str) -> np.random.Generator:
    """A stream of its own for each purpose, keyed by name: a new purpose moves no other one's draws."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()),)))


def _require(is_met: bool, problem: str) -> None:
    if not is_met:
        raise ValueError(problem)
