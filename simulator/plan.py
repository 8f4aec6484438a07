"""What bounds a plan, and the plan itself: which requests compute how many tokens in one step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from simulator.request import Request

__all__ = ["NO_ORDER", "Plan", "RunWatcher", "SchedulerSettings"]

NO_ORDER = 1 << 62
"""An order that no request has: all of them are before it."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a server's flags say about scheduling; the defaults are vLLM's for a large GPU."""

    max_model_len: int
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    """Tokens that one prompt may take of a step while others wait or run; 0: no limit."""
    scheduling_policy: str = "fcfs"
    """"fcfs" or "priority"."""
    reserve_full_isl: bool = True
    """Admit a request only if all of its known tokens would fit now."""
    async_scheduling: bool = False
    """Plan each step before the one before it has run."""
    state_block: int | None = None
    """Tokens between cached Mamba states: prompt chunks end there. None: no layer caches states."""

    @property
    def max_chunk(self) -> int:
        """The most tokens of one prompt in a step, while others are there."""
        return min(self.long_prefill_token_threshold or self.max_num_batched_tokens, self.max_num_batched_tokens)


class RunWatcher(Protocol):
    """Whoever wants to know of block tables that change within a row of equal steps."""

    def before_change(self, request: Request, num_computed: int) -> None:
        """The tables of a decode, which has computed so many tokens, may give blocks back."""

    def ran_on(self) -> None:
        """The row is over as far as it ran."""


class Plan:
    """What was decided for one step."""

    __slots__ = (
        "chunk_tokens",
        "chunks",
        "finishing",
        "last_order",
        "must_replan",
        "num_steps",
        "preempted",
        "prompt_done",
        "rejected",
        "stalled",
    )

    def __init__(self) -> None:
        self.chunks: list[tuple[Request, int]] = []
        """Requests in their prompt, in order, with the tokens that they compute."""
        self.chunk_tokens = 0
        self.finishing: list[Request] = []
        """Requests whose last token this step computes."""
        self.prompt_done: list[Request] = []
        """Requests whose prompt this step completes: a token comes out of it."""
        self.preempted: list[Request] = []
        self.rejected: list[Request] = []
        """Requests that could not be admitted though nothing else holds blocks."""
        self.stalled: list[Request] = []
        """Decodes that get no token in this step."""
        self.last_order = NO_ORDER
        """Running requests behind this order get nothing, because one before them ended the round."""
        self.must_replan = False
        """The next step can differ though nothing is due."""
        self.num_steps = 1
        """Steps that were counted as computed when they were planned, and are not settled."""

    @property
    def only_rejects(self) -> bool:
        """Nothing is computed and nobody gives way: no step is run for it."""
        return bool(self.rejected) and not (self.chunks or self.preempted)

    def add_chunk(self, request: Request, num_new: int) -> None:
        """A request computes so many more tokens of its prompt."""
        self.chunks.append((request, num_new))
        self.chunk_tokens += num_new

    def take_back_chunk(self, request: Request) -> int:
        """A request is preempted: gives back the tokens that it had got."""
        for chunk in self.chunks:
            if chunk[0] is request:
                self.chunks.remove(chunk)
                self.chunk_tokens -= chunk[1]
                return chunk[1]
        return 0

    def num_tokens(self) -> dict[int, int]:
        """By order, the tokens of those that do not just decode: one token is what all other decodes get."""
        num_tokens = {request.order: num_new for request, num_new in self.chunks}
        for request in self.finishing:
            num_tokens.setdefault(request.order, 1)
        for request in self.stalled:
            num_tokens[request.order] = 0
        return num_tokens

    def tokens(self, running: Iterable[Request]) -> Iterator[tuple[str, int]]:
        """(request id, tokens) of all running requests that get some, in order of service."""
        num_tokens = self.num_tokens()
        for request in running:
            if count := num_tokens.get(request.order, int(request.is_decoding)):
                yield request.request_id, count
