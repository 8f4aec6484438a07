"""Make sessions from a model: the conversations of `synthetic`, whose turns wait for their answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

from workloads.sessions import Call, Session, SessionTrace
from workloads.synthetic import (
    PREFIX_BLOCK_TOKENS,
    Arrivals,
    ConversationSource,
    Traffic,
    conversation_demo_traffic,
    random_stream,
)


def synthesize_sessions(traffic: Traffic, num_sessions: int, seed: int = 0, name: str = "synthetic") -> SessionTrace:
    """`num_sessions` conversations drawn from the model: those that begin `synthesize`'s trace of the same seed.

    Their turns have the same lengths and prefixes; the pause before each is its think time. When they begin is
    not used, nor how fast an answer is written (`Conversations.answer_token_s`): a server tells. A model without
    conversations gives sessions of one call.

    Raises `ValueError` where `num_sessions` or `seed` is negative.
    """
    for what, number in (("num_sessions", num_sessions), ("seed", seed)):
        if number < 0:
            raise ValueError(f"{what} must be at least 0, got {number}")
    return SessionTrace(name, PREFIX_BLOCK_TOKENS, partial(_rows, traffic, num_sessions, seed))


def conversation_demo_sessions(num_sessions: int = 100, seed: int = 0) -> SessionTrace:
    """The conversations of `conversation_demo`, as sessions."""
    return synthesize_sessions(conversation_demo_traffic(), num_sessions, seed, "conversation-demo")


def session_starts_s(rate_per_s: float, seed: int = 0) -> Iterator[float]:
    """When sessions start, in seconds and without end, if independent users start so many a second; the first at 0.

    Raises `ValueError` where the rate is not a positive number.
    """
    arrivals = Arrivals.poisson(rate_per_s)
    chunks = arrivals.starts_s(random_stream(seed, "session starts"))
    return itertools.chain.from_iterable(chunk.tolist() for chunk in chunks)


def _rows(traffic: Traffic, num_sessions: int, seed: int) -> Iterator[Session]:
    source = ConversationSource(traffic, seed)
    shared = [*(range(ids[0], ids[-1] + 1) if ids else range(0) for ids in source.prefix_ids), range(0)]
    conversations = itertools.chain.from_iterable(
        np.split(turns, np.flatnonzero(np.diff(turns["conversation"])) + 1) for turns, _ in source.chunks()
    )
    for number, turns in enumerate(itertools.islice(conversations, num_sessions)):
        columns = zip(
            *(turns[name].tolist() for name in ("prompt_tokens", "output_tokens", "think_s", "prefix", "num_own_ids")),
            strict=True,
        )
        first_id = int(turns["first_own_id"][0])
        calls = tuple(
            Call(
                request_id=f"c{number}/{turn}",
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                think_time_s=think_s,
                prefix_ranges=(shared[prefix], range(first_id, first_id + num_own_ids)),
            )
            for turn, (prompt_tokens, output_tokens, think_s, prefix, num_own_ids) in enumerate(columns, start=1)
        )
        yield Session(f"c{number}", calls)
