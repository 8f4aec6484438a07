"""A story in words, for a person: short sentences, times in seconds, tokens counted from 0."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from simulator.story import Admission, Attempt, Cause, Chunk, Decode, Moment, Preemption, Story, TypeHit, Wait
from simulator.summary_table import format_seconds

__all__ = ["Section", "cause_in_words", "sections"]

SHOWN_CHUNKS = 3
OF_ONE_REQUEST = {"blocks", "state_being_written", "state_boundary"}
"""Causes of waiting that are the first one's in the queue; all others would hold for anybody."""


class Section(NamedTuple):
    """A heading, and (when or what, sentence) for each line below it."""

    heading: str
    lines: list[tuple[str, str]]


def sections(story: Story) -> list[Section]:
    """The story from the arrival to the end."""
    return [
        _beginning(story),
        *(section for nth, attempt in enumerate(story.attempts) for section in _of_attempt(story, nth, attempt)),
        _end(story),
    ]


def _beginning(story: Story) -> Section:
    lengths = f"{_tokens(story.prompt_tokens)} of prompt, {_tokens(story.output_tokens)} of output"
    lines = [(_at(story.arrival_s), f"It arrives: {lengths}.")]
    if story.replica is not None:
        lines.append((_at(story.sent_s), f"The router sends it to replica {story.replica}."))
    return Section(f"Request {story.request_id}", lines)


def _of_attempt(story: Story, nth: int, attempt: Attempt) -> Iterator[Section]:
    if attempt.waits:
        yield _queue(story, attempt.waits, is_first=nth == 0)
    if attempt.admission is not None:
        yield _hit(attempt.admission)
    lines = []
    if attempt.chunks:
        lines.append(_prefill(attempt.chunks))
    if attempt.decode is not None:
        lines += _decode(attempt.decode)
    if lines:
        yield Section("Computing", lines)
    if attempt.preemption is not None:
        yield _preemption(story, attempt.preemption)


def _end(story: Story) -> Section:
    if story.status == "rejected":
        return Section("End", [(_at(story.end_s), f"It is rejected: {story.reason}.")])
    words = [f"Finished {format_seconds(story.end_s - story.arrival_s)} after its arrival"]
    if story.first_token_s is not None:
        words.append(f"first token after {format_seconds(story.first_token_s - story.arrival_s)}")
    words.append(_times_preempted(story.num_preemptions))
    return Section("End", [(_at(story.end_s), f"{', '.join(words)}.")])


def _times_preempted(count: int) -> str:
    often = {0: "never preempted", 1: "preempted once", 2: "preempted twice"}
    return often.get(count, f"preempted {count:,} times")


# Waiting.


def _queue(story: Story, waits: Sequence[Wait], *, is_first: bool) -> Section:
    lasted = format_seconds(waits[-1].end_s - waits[0].start_s)
    ahead = max(wait.num_ahead for wait in waits)
    before = f", at first behind {_count(ahead, 'other')}" if ahead else ""
    lines = [
        (f"for {format_seconds(sum(wait.end_s - wait.start_s for wait in alike))}", _cause_of_wait(story, alike))
        for alike in _by_cause(story, waits)
    ]
    return Section(f"{'Queue' if is_first else 'Queue again'}: {lasted}{before}", lines)


def _by_cause(story: Story, waits: Sequence[Wait]) -> list[list[Wait]]:
    """Waits of one cause together, in the order in which the causes first came."""

    def cause(wait: Wait) -> tuple[str, bool]:
        return wait.kind, wait.kind in OF_ONE_REQUEST and wait.head == story.request_id

    order = {key: nth for nth, key in reversed(list(enumerate(map(cause, waits))))}
    return [list(alike) for _, alike in groupby(sorted(waits, key=lambda wait: order[cause(wait)]), key=cause)]


def _cause_of_wait(story: Story, waits: Sequence[Wait]) -> str:
    longest = max(waits, key=lambda wait: wait.end_s - wait.start_s)
    is_own = longest.head == story.request_id
    sentence = _WAITS[longest.kind](longest, "it" if is_own else f"request {longest.head}")
    if is_own or longest.kind not in OF_ONE_REQUEST:
        return sentence
    others = len({wait.head for wait in waits}) - 1
    return f"{sentence} The same held for {_count(others, 'other')} that stood first." if others else sentence


def _wait_for_blocks(wait: Wait, who: str) -> str:
    reserve = f" for all its {wait.reserve_tokens:,} tokens" if wait.reserve_tokens else ""
    watermark = f", and {wait.watermark_blocks:,} of them must stay free (--watermark)" if wait.watermark_blocks else ""
    stands = "Too few free blocks" if who == "it" else f"Too few free blocks for {who}, the first of the queue"
    return f"{stands}: it needed {wait.needed_blocks:,}{reserve}, and {wait.free_blocks:,} were free{watermark}."


_WAITS: dict[str, Callable[[Wait, str], str]] = {
    "router": lambda _wait, _who: "All replicas ran --max-num-seqs requests, so the router let it wait.",
    "step_running": lambda _wait, _who: "The step that ran when it arrived had been planned without it.",
    "blocks": _wait_for_blocks,
    "state_being_written": lambda _wait, who: (
        f"{'Its prefix hit' if who == 'it' else f'The prefix hit of {who}'} ended with a Mamba state that this very"
        " step wrote: it can be read in the next one."
    ),
    "max_num_seqs": lambda wait, _who: f"{wait.limit:,} requests ran, as many as --max-num-seqs allows.",
    "token_budget": lambda wait, _who: f"The step's token budget was used up ({wait.limit:,} tokens).",
    "state_boundary": lambda _wait, who: (
        f"Too little was left of the step's token budget for {who} to come to where a Mamba state is kept."
    ),
    "preemption": lambda wait, _who: (
        f"Request {wait.by} had no room to go on and {_victim(wait)}; such a step admits nobody."
    ),
}


def _victim(wait: Wait) -> str:
    return "was preempted itself" if wait.by == wait.victim else f"request {wait.victim} was preempted for it"


# Hits.


def _hit(admission: Admission) -> Section:
    known, hit = admission.known_tokens, admission.hit_tokens
    heading = f"Admission: {_tokens(hit)} of {known:,} {'are' if hit != 1 else 'is'} a prefix hit"
    lines = [(_at(admission.when.time_s), f"Step {admission.when.step:,} takes it in.")]
    if not admission.types:
        return Section(heading, [*lines, ("", "Prefix caching is off.")])
    whys: dict[str, list[TypeHit]] = {}
    for kind in admission.types:
        whys.setdefault(_why(kind, admission), []).append(kind)
    lines += [("", f"{_names(kinds)}: {why}") for why, kinds in whys.items()]
    return Section(heading, [*lines, *(_agreement(admission) if len(whys) > 1 else [])])


def type_in_words(kind: TypeHit, admission: Admission) -> str:
    """What one attention type has, and why it is not more."""
    return f"{_names([kind])}: {_why(kind, admission)}"


def _names(kinds: Sequence[TypeHit]) -> str:
    return _capital(" and ".join(f"{kind.name} ({_groups(kind.groups)})" for kind in kinds))


def _why(kind: TypeHit, admission: Admission) -> str:
    if kind.cause is None or kind.tokens == admission.max_hit_tokens:
        multiple = f"{admission.alignment:,} tokens"
        why = f"That is all: the last token is always computed, and hits end on multiples of {multiple}."
    else:
        why = cause_in_words(kind.cause, kind.tokens)
    return f"{_tokens(kind.tokens)}. {why}"


def _agreement(admission: Admission) -> list[tuple[str, str]]:
    """Who cut the hit, where several types had to agree."""
    cuts = [cut for cut in admission.cuts if cut.after < admission.max_hit_tokens]
    if not cuts:
        return []
    *before, last = cuts
    first = [f"{cut.name} to {_tokens(cut.after)}" for cut in before]
    words = [f"The hit is cut by {', then '.join([*first, f'{last.name} to {_tokens(last.after)}'])}."]
    alone = {kind.name: kind.cause for kind in admission.types}
    if last.cause is not None and last.cause != alone[last.name]:
        words.append(cause_in_words(last.cause, last.after))
    as_short = [kind.name for kind in admission.types if kind.tokens <= last.after and kind.name != last.name]
    if as_short:
        words.append(f"Without it the hit would be no longer: {' and '.join(as_short)} had no more.")
    return [("", " ".join(words))]


def cause_in_words(cause: Cause, hit_tokens: int) -> str:
    """Why an attention type has no more than `hit_tokens`, in one or two sentences."""
    words = _CAUSES[cause.kind](cause, _block(cause, hit_tokens))
    if cause.rounded_from is None:
        return words
    return (
        f"{words} It has {_tokens(cause.rounded_from)}, but between {hit_tokens:,} and {cause.resume_at:,} no hit ends."
    )


def _block(cause: Cause, hit_tokens: int) -> str:
    """The missing block, and what it is needed for."""
    tokens = f"tokens {cause.start_token:,} to {cause.end_token - 1:,}"
    groups = cause.num_groups
    part = f" in {cause.num_groups_missing} of {groups} groups" if cause.num_groups_missing < groups else ""
    if cause.start_token <= hit_tokens:
        return f"The next block, {tokens}, is missing{part}"
    return f"To resume after {cause.resume_at:,} tokens it lacks the block of {tokens}{part}"


_CAUSES: dict[str, Callable[[Cause, str], str]] = {
    "never_computed": lambda _, block: f"{block}: nobody had computed it.",
    "being_computed": lambda cause, block: (
        f"{block}: request {cause.by} was about to compute it, and was at {cause.tokens:,} tokens."
    ),
    "not_full": lambda cause, block: (
        f"{block}: what it shares with request {cause.by} ends after {cause.tokens:,} tokens, within the block."
    ),
    "not_kept": lambda cause, block: (
        f"{block}: request {cause.by} had computed it {_moment(cause.when)}, but sparse retention did not keep it;"
        f" {cause.setting} does."
    ),
    "no_state": lambda cause, block: (
        f"{block}: request {cause.by} had passed it {_moment(cause.when)} in one step from {cause.tokens:,} tokens on,"
        " and a state is written at the end of a step only."
    ),
    "evicted": lambda cause, block: (
        f"{block}: request {cause.computed_by} had cached it {_moment(cause.computed_when)}, and it was evicted"
        f" {_moment(cause.when)}, when request {cause.by} took blocks."
    ),
    "alignment": lambda cause, _: f"Hits end on certain multiples of tokens only, the last before {cause.end_token:,}.",
}


# Computing.


def _prefill(chunks: Sequence[Chunk]) -> tuple[str, str]:
    total = sum(chunk.tokens for chunk in chunks)
    sizes = [f"{chunk.tokens:,}" for chunk in chunks]
    if len(sizes) > SHOWN_CHUNKS + 1:
        sizes = [*sizes[:SHOWN_CHUNKS], "...", sizes[-1]]
    parts = f" ({', '.join(sizes)})" if len(chunks) > 1 else ""
    span = format_seconds(chunks[-1].end_s - chunks[0].start_s)
    steps = _count(len(chunks), "step")
    return _at(chunks[0].start_s), f"Computes {_tokens(total)} in {steps}{parts}, which takes {span}."


def _decode(decode: Decode) -> Iterator[tuple[str, str]]:
    tokens = decode.computed_after - decode.computed_before
    if tokens:
        span = decode.end_s - decode.start_s
        each = f", one every {format_seconds(span / tokens)}" if tokens > 1 else ""
        yield _at(decode.start_s), f"Decodes {_tokens(tokens)} in {format_seconds(span)}{each}."
    if decode.num_missed_steps:
        missed = f"It missed {_count(decode.num_missed_steps, 'step')} ({format_seconds(decode.missed_s)})"
        yield "", f"{missed}: the token budget did not reach it, or somebody before it was preempted."


def _preemption(story: Story, preemption: Preemption) -> Section:
    needed, free = preemption.needed_blocks, preemption.free_blocks
    blocks = f"{_count(needed, 'block')}, {free:,} {'was' if free == 1 else 'were'} free"
    if preemption.by == story.request_id:
        who = f"It needed {blocks}, and it was itself the next to yield."
    else:
        who = f"Request {preemption.by} needed {blocks}. This one was next to yield."
    lost = f"Its blocks go, with {_tokens(preemption.lost_tokens)} computed; what stays cached can be hit."
    return Section("Preemption", [(_at(preemption.when.time_s), f"{who} {lost}")])


# Words.


def _at(time_s: float) -> str:
    return f"{time_s:,.3f} s"


def _moment(moment: Moment | None) -> str:
    return "" if moment is None else f"at {_at(moment.time_s)}"


def _tokens(count: int) -> str:
    return _count(count, "token")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _groups(groups: Sequence[int]) -> str:
    """Groups as a person counts them, from 1."""
    first, last = groups[0] + 1, groups[-1] + 1
    return f"group {first}" if first == last else f"groups {first}–{last}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
