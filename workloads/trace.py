"""The canonical trace: requests in order of arrival, with the prompt beginnings that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


class TraceError(ValueError):
    """A trace that cannot be used; the message is one line that says where and why.

    For example `FILE, row 17, field "input_length": must be a non-negative whole number, got -3`.
    """

    @classmethod
    def at(cls, path: str, row: int, field: str, problem: str) -> TraceError:
        """The error of one field; `row` counts data rows from 1, without a header and blank lines."""
        return cls(f'{path}, row {row:,}, field "{field}": {problem}')


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    `prefix_ids` name the request's tokens block by block, `Trace.prefix_block_tokens` tokens each, whole
    blocks only. Equal ids mean that everything up to the block's end is equal, in any two requests of the
    trace. A request may name fewer blocks than it has (the others are its own), and more than its prompt has:

    ```
    # a turn of a conversation, one id per 16 tokens
    #  7   7   7   9   9 |  9   9        ids of the tokens' blocks; the next turn repeats them all
    # [----- prompt -----|-- output --]
    ```
    """

    request_id: str
    arrival_s: float  # seconds from the trace's start, non-decreasing within a trace
    prompt_tokens: int  # >= 1
    output_tokens: int  # >= 1
    prefix_ids: tuple[int, ...] = ()
    session: str | None = None  # requests of one conversation carry the same name
    priority: int = 0  # as a vLLM request's: the lower, the earlier


@dataclass(frozen=True)
class Trace:
    """A named sequence of requests that streams: each `rows()` starts again from the first row.

    A trace promises ordered arrivals and requests of at least one prompt and one output token. Walking
    over a trace that was read from a file raises `TraceError` at the first row that breaks the promise.
    """

    name: str
    prefix_block_tokens: int | None  # tokens per prefix id; None: the trace says nothing about prefixes
    rows: Callable[[], Iterator[TraceRequest]]
    num_requests: int | None = None  # where it is known without reading

    def __iter__(self) -> Iterator[TraceRequest]:
        return self.rows()
