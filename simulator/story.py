"""The life of one request as facts: what it waited for, what it hit, what cut the hit, who preempted it.

```
# one attempt                                          | the next one
# waits ......... | admission | chunks ... | decode ...| waits ... | admission | chunk | decode .....
# arrival         ^ first scheduled                    ^ preemption                               finish
```

Times are seconds on the simulation's clock; requests are named by their ids.
"""

from dataclasses import asdict, dataclass
from math import isnan, nan
from typing import Any

__all__ = [
    "Admission",
    "Attempt",
    "Cause",
    "Chunk",
    "Decode",
    "HitCut",
    "Moment",
    "Preemption",
    "Story",
    "TypeHit",
    "Wait",
]


@dataclass(slots=True)
class Moment:
    """When something happened: the time is known once the step is planned or settled."""

    step: int
    time_s: float = nan


@dataclass(frozen=True, slots=True)
class Wait:
    """For a while one cause kept the request in the queue."""

    start_s: float
    end_s: float
    kind: str
    """router: it was not sent to a replica of the fleet yet. step_running: it arrived while a step ran or was planned.
    blocks: too few free blocks. state_being_written: the hit ends with a Mamba state that the step itself writes.
    max_num_seqs, token_budget: the step was full. state_boundary: what was left of the token budget does not reach the
    next state to keep. preemption: the step had to preempt, so it admitted nobody."""
    head: str
    """Who stood first in the queue: it had to be admitted before anybody else."""
    num_ahead: int
    """Requests before it in the queue when that began."""
    limit: int | None = None
    """Requests (max_num_seqs) or tokens (token_budget) of a step, at most."""
    needed_blocks: int | None = None
    """By the head, at the least while this lasted; for its whole prompt where `reserve_tokens` says so."""
    free_blocks: int | None = None
    """At that moment."""
    watermark_blocks: int | None = None
    reserve_tokens: int | None = None
    by: str | None = None
    """Of a preemption: the running request that needed a block."""
    victim: str | None = None
    """Of a preemption: who gave way."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a block was not there to be hit."""

    kind: str
    """never_computed: by nobody who shares the beginning. being_computed: somebody was about to. not_full: what is
    shared ends within the block. not_kept: computed, but retention is sparse. no_state: computed, but no chunk ended
    there, so no state was written. evicted: its place was needed. alignment: hits end on certain multiples only."""
    start_token: int
    end_token: int
    """The block's tokens, the last one excluded."""
    resume_at: int
    """Tokens that would have been a hit for this type, had this and perhaps further blocks been there."""
    num_groups: int
    num_groups_missing: int
    by: str | None = None
    """Who took the block, or is computing it, or has computed it."""
    when: Moment | None = None
    """When that was."""
    computed_by: str | None = None
    """Of an eviction: who had computed the block."""
    computed_when: Moment | None = None
    tokens: int | None = None
    """Of being_computed: how far it was. Of not_full: where the shared beginning ends. Of no_state: the last end of a
    chunk before the block's."""
    setting: str | None = None
    """The flag with which it would have been kept."""
    rounded_from: int | None = None
    """Tokens that the type has, where it is only that hits do not end there."""


@dataclass(frozen=True, slots=True)
class TypeHit:
    """What one attention type would have hit without the others."""

    name: str
    groups: tuple[int, ...]
    """Numbers of its KV cache groups, from 0."""
    block_size: int
    tokens: int
    cause: Cause | None
    """Why it is not more; None: it is all that can be hit."""


@dataclass(frozen=True, slots=True)
class HitCut:
    """One attention type shortened the hit, for whatever reason."""

    name: str
    before: int
    after: int
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Admission:
    """The request got its first blocks of this attempt."""

    when: Moment
    known_tokens: int
    """Prompt and, after a preemption, the output so far."""
    hit_tokens: int
    max_hit_tokens: int
    """Known tokens but the last, rounded down to where hits can end."""
    alignment: int
    """Tokens of which a hit is a multiple."""
    types: tuple[TypeHit, ...]
    """Empty: prefix caching is off."""
    cuts: tuple[HitCut, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of the prompt (or of lost output) that one step computed."""

    step: int
    start_s: float
    end_s: float
    tokens: int
    computed_before: int


@dataclass(frozen=True, slots=True)
class Decode:
    """The request computed a token in each step but those that it missed."""

    start_s: float
    end_s: float
    computed_before: int
    computed_after: int
    num_missed_steps: int
    """The token budget did not reach it, or a request before it had to be preempted."""
    missed_s: float


@dataclass(frozen=True, slots=True)
class Preemption:
    """The request lost its blocks."""

    when: Moment
    by: str
    """Whose next slots there was no room for; it may be the request itself."""
    needed_blocks: int
    free_blocks: int
    lost_tokens: int
    """Computed tokens that it had; what of them is still cached when it comes back is a prefix hit."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """From the queue to a preemption or the end."""

    waits: tuple[Wait, ...]
    admission: Admission | None = None
    chunks: tuple[Chunk, ...] = ()
    decode: Decode | None = None
    preemption: Preemption | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """The life of one request."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    attempts: tuple[Attempt, ...]
    status: str
    """finished or rejected."""
    reason: str | None
    """Of a rejection."""
    end_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    cached_tokens: int
    num_preemptions: int
    replica: int | None = None
    """Of a fleet, that which it was sent to."""

    @property
    def sent_s(self) -> float:
        """When it was sent to its replica: most routers do that as soon as it arrives."""
        waits = self.attempts[0].waits if self.attempts else ()
        return waits[0].end_s if waits and waits[0].kind == "router" else self.arrival_s

    def to_json(self) -> dict[str, Any]:
        """Plain values; a time that is not known is null."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and isnan(value) else value
