"""What one step reads and writes through the block tables of one manager: of tokens, or of states.

The order in a step is that of a model's layers: states are read before they are written, a token's key and
value are written before anybody attends to them. `before`, `write` and `after` are called for all managers
in turn, so that what one group writes and another one reads would meet.

```
# one request in one group, tokens `start` to `end` are computed by this step
#      0 ........... first_read ......... start ......... end
#       not read     |  written earlier   |  written, then read back  |
```
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kvcache.errors import InvariantError
from kvcache.managers import BlockTable, SingleTypeManager
from kvcache.managers.mamba import StateTable
from kvcache.specs import KVCacheSpec
from simulator.marked_pool import MarkedPool, Marks, Slots, Writer, out_of_reach

__all__ = ["FIRST_READ", "Life", "Span", "StateTables", "Step", "Tables", "TokenTables"]

FIRST_READ: dict[str, Callable[..., int]] = {
    "full": lambda spec, start: 0,
    "mla": lambda spec, start: 0,
    "sliding": lambda spec, start: max(0, start - spec.window + 1),
    "chunked": lambda spec, start: start // spec.chunk * spec.chunk,
}
"""By attention type: the first token that the query at position `start` attends to."""


class Life:
    """A request between its admission and the step after which it holds no blocks."""

    __slots__ = ("held", "marks", "tables", "writer", "written")

    def __init__(self, writer: Writer, marks: np.ndarray, tables: Sequence[BlockTable], written: int) -> None:
        self.writer = writer
        self.marks = marks
        """By position, what each token is."""
        self.tables = tables
        self.held = [_Held() for _ in tables]
        self.written = written
        """Tokens whose keys, values and states exist."""


class _Held:
    """A table as it was seen last."""

    __slots__ = ("blocks", "first", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.first = 0
        """Position of the first held block."""
        self.blocks = np.empty(0, dtype=np.int64)
        """`ids`, [positions x groups]."""


class Span(NamedTuple):
    """What one request computes in a step, or in a row of steps: tokens `start` to `end` (exclusive)."""

    life: Life
    start: int
    end: int
    query: int
    """The first token that the last of the steps computes."""


class ByBlock(NamedTuple):
    """Tokens of several requests, cut into blocks of one size: all that does not depend on block ids."""

    first: np.ndarray
    """By request: the table position of its first token."""
    end: np.ndarray
    """By request: the one after that of its last token."""
    num_slots: np.ndarray
    """Tokens in each block."""
    offsets: np.ndarray
    """Of each token in its block."""
    last_marks: np.ndarray
    """For each block, what its last token is."""


class Tokens:
    """Tokens of several requests, one request after the other."""

    __slots__ = ("_by_block", "counts", "ends", "firsts", "lives", "marks", "numbers", "positions")

    def __init__(self, lives: Sequence[Life], firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Those from `firsts` to `ends` (exclusive) of each."""
        self.lives = lives
        self.firsts = np.array(firsts)
        self.ends = np.array(ends)
        self.counts = self.ends - self.firsts
        shifts = self.firsts - np.cumsum(self.counts) + self.counts
        self.positions = np.arange(self.counts.sum()) + np.repeat(shifts, self.counts)
        spans = zip(lives, firsts, ends, strict=True)
        self.marks = np.concatenate([life.marks[first:end] for life, first, end in spans])
        self.numbers = [life.writer.number for life in lives]
        self._by_block: dict[int, ByBlock] = {}

    def by_block(self, size: int) -> ByBlock:
        """Cut into blocks of so many tokens, once for all managers that have such blocks."""
        if size in self._by_block:
            return self._by_block[size]
        first = self.firsts // size
        end = np.where(self.counts > 0, (self.ends + size - 1) // size, first)
        counts = end - first
        starts = (np.arange(counts.sum()) + (first - counts.cumsum() + counts).repeat(counts)) * size
        num_slots = np.minimum(starts + size, self.ends.repeat(counts))
        num_slots -= np.maximum(starts, self.firsts.repeat(counts))
        offsets = self.positions - starts.repeat(num_slots)
        cut = ByBlock(first, end, num_slots, offsets, self.marks[num_slots.cumsum() - 1])
        self._by_block[size] = cut
        return cut

    def owner(self, token: int) -> tuple[Life, int]:
        """Whose token it is, and its position."""
        number = int(np.searchsorted(np.cumsum(self.counts), token, side="right"))
        return self.lives[number], int(self.positions[token])


class Step:
    """What a step computes."""

    __slots__ = ("queries", "spans", "tokens")

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        lives, starts, ends, queries = zip(*spans, strict=True)
        self.tokens = Tokens(lives, starts, ends)
        self.queries = np.array(queries)


class Tables(Protocol):
    """The block tables of one manager, as one step uses them."""

    def must_look(self, life: Life, num_computed: int) -> bool:
        """Whether what was computed up to now would be out of reach once the table has changed."""

    def before(self, step: Step) -> None:
        """Look at the tables, and read what is read before anything is written."""

    def write(self) -> None:
        """Write what the step computes."""

    def after(self) -> bool:
        """Read it back; whether it was written into blocks of which nobody else reads."""

    def reread(self, spans: Sequence[Span]) -> None:
        """Read all that these spans read."""

    def forget(self, life: Life) -> None:
        """A request holds no blocks any more."""


class TokenTables:
    """Block tables of attention: a slot for every token."""

    def __init__(self, nth: int, manager: SingleTypeManager, pool: MarkedPool) -> None:
        self._nth = nth
        self._spec: KVCacheSpec = manager.spec
        self._block_size = manager.block_size
        self._num_groups = manager.num_groups
        self._pool = pool
        self._salts = pool.group_salts[manager.groups.start : manager.groups.stop]
        self._first_read = FIRST_READ[manager.spec.kind]
        self._tokens: Tokens | None = None
        self._written: Slots | None = None
        self._marks: list[Marks] = []
        self._hits_are_seen = True

    def must_look(self, life: Life, num_computed: int) -> bool:
        """Whether tokens that are not written yet have left the reach."""
        return self._first_read(self._spec, num_computed) > life.written

    def before(self, step: Step) -> None:
        """Look at the tables."""
        self._tokens, self._hits_are_seen = step.tokens, True
        self._look(step.spans)

    def _look(self, spans: Sequence[Span]) -> None:
        nth, size, num_groups = self._nth, self._block_size, self._num_groups
        spec, first_read = self._spec, self._first_read
        for life, start, end, query in spans:
            table, held = life.tables[nth], life.held[nth]
            first, ids = table.first_held, table.ids
            if first != held.first or ids != held.ids:
                self._take_over(life, table, start)
            if first and first * size > first_read(spec, query):
                raise self._out_of_reach(life, first_read(spec, query), "its block was given back")
            if (first + len(ids) // num_groups) * size < end:
                raise self._out_of_reach(life, end - 1, "it has no block")

    def _take_over(self, life: Life, table: BlockTable, start: int) -> None:
        """Remember what a table holds now; of blocks from before the step somebody must have seen what is in them."""
        held, num_groups, pool = life.held[self._nth], self._num_groups, self._pool
        ids, first = table.ids, table.first_held
        dropped = (first - held.first) * num_groups
        kept = held.ids[dropped:] if dropped >= 0 else []
        num_kept = len(kept)
        if not kept or ids[:num_kept] != kept:
            dropped, num_kept = len(held.ids), 0
        if dropped:
            pool.count_holders(held.blocks[:dropped], -1)
        new = np.array(ids[num_kept:], dtype=np.int64)
        pool.count_holders(new, 1)
        held.blocks = np.concatenate((held.blocks[dropped:], new))
        held.ids, held.first = ids.copy(), first
        new_first = first + num_kept // num_groups
        if new_first >= start // self._block_size:
            return
        last = np.arange(new_first + 1, start // self._block_size + 1) * self._block_size - 1
        keys = (life.marks[last][:, None] ^ self._salts).ravel()
        self._hits_are_seen &= bool((pool.seen[new[: len(keys)]] == keys).all())

    def write(self) -> None:
        """Write the marks of all new tokens."""
        assert self._tokens is not None
        tokens, pool = self._tokens, self._pool
        self._written = written = self._slots(tokens)
        cut = tokens.by_block(self._block_size)
        numbers = np.repeat(tokens.numbers, cut.end - cut.first)
        pool.writer[written.blocks] = numbers[:, None]
        self._marks = [places.marks(written, self._salts) for places in pool.places[self._nth]]
        for marks in self._marks:
            pool.write(marks)

    def after(self) -> bool:
        """Read them back; now these blocks are known to hold what they should."""
        assert self._tokens is not None
        assert self._written is not None
        written = self._written
        self._verify(self._tokens, written, self._marks)
        return self._hits_are_seen and bool((self._pool.holders[written.blocks] == 1).all())

    def reread(self, spans: Sequence[Span]) -> None:
        """Read all tokens that are attended to."""
        self._look(spans)
        lives, _, ends, queries = zip(*spans, strict=True)
        tokens = Tokens(lives, [self._first_read(self._spec, query) for query in queries], ends)
        slots = self._slots(tokens)
        self._verify(tokens, slots, [places.marks(slots, self._salts) for places in self._pool.places[self._nth]])

    def forget(self, life: Life) -> None:
        """Nobody reads the request's blocks any more."""
        self._pool.count_holders(life.held[self._nth].blocks, -1)

    def _slots(self, tokens: Tokens) -> Slots:
        """The slots of tokens in every group."""
        nth, num_groups, cut = self._nth, self._num_groups, tokens.by_block(self._block_size)
        parts = []
        for life, first, end in zip(tokens.lives, cut.first.tolist(), cut.end.tolist(), strict=True):
            held = life.held[nth]
            parts.append(held.blocks[(first - held.first) * num_groups : (end - held.first) * num_groups])
        blocks = np.concatenate(parts).reshape(-1, num_groups)
        return Slots(blocks, cut.num_slots, cut.offsets, tokens.marks, cut.last_marks)

    def _verify(self, tokens: Tokens, slots: Slots, all_marks: Iterable[Marks]) -> None:
        """Read marks; then the blocks are known to hold what they should."""
        for marks in all_marks:
            wrong = self._pool.first_wrong(marks)
            if wrong is not None:
                life, position = tokens.owner(wrong.slot)
                offset = slots.offsets[wrong.slot]
                where = f"token {position} of layer {wrong.layer} in block {wrong.block}, slot {offset},"
                raise self._pool.wrong_mark(life.writer.name, wrong.block, wrong.found, where)
        self._pool.seen[slots.blocks] = slots.last_marks[:, None] ^ self._salts

    def _out_of_reach(self, life: Life, position: int, why: str) -> InvariantError:
        layers = f"{self._num_groups} groups of {self._spec.kind} layers"
        return out_of_reach(life.writer, f"attends to token {position} in {layers}, but {why}")


class _State(NamedTuple):
    """A state of one request."""

    life: Life
    num_tokens: int
    """Tokens that it stands for."""
    position: int
    """Of its block in the table."""
    blocks: list[int]
    """One in each group."""
    mark: int
    """Of the last of those tokens."""


class StateTables:
    """Tables of Mamba states: a step reads the state before its first token, and leaves one after its last."""

    def __init__(self, nth: int, manager: SingleTypeManager, pool: MarkedPool) -> None:
        self._nth = nth
        self._block_size = manager.block_size
        self._num_groups = manager.num_groups
        self._pool = pool
        self._salts = pool.group_salts[manager.groups.start : manager.groups.stop]
        self._sources: list[_State] = []
        self._left_alone: list[_State] = []
        """Sources that the step does not write on."""
        self._targets: list[_State] = []
        self._written: Slots | None = None
        self._marks: list[Marks] = []
        """Of the targets."""

    def must_look(self, life: Life, num_computed: int) -> bool:
        """Whether the state stands at a block's end, or has moved into another block."""
        if num_computed == life.written:
            return False
        return num_computed % self._block_size == 0 or self._position(life.written) != self._position(num_computed)

    def _position(self, num_tokens: int) -> int:
        """Where the state that stands for so many tokens is."""
        return (num_tokens - 1) // self._block_size

    def before(self, step: Step) -> None:
        """Read the states that the step starts from."""
        self._sources, self._left_alone, self._targets = [], [], []
        for life, start, end, _ in step.spans:
            target = self._state(life, end)
            self._targets.append(target)
            if start:
                source = self._state(life, start)
                self._sources.append(source)
                if source.position != target.position:
                    self._left_alone.append(source)
        if self._sources:
            self._verify(self._sources, self._marks_of(self._joined(self._sources)))

    def write(self) -> None:
        """Write the states that the step ends with."""
        self._written = slots = self._joined(self._targets)
        numbers = np.array([state.life.writer.number for state in self._targets])
        self._pool.writer[slots.blocks] = numbers[:, None]
        self._marks = self._marks_of(slots)
        for marks in self._marks:
            self._pool.write(marks)

    def after(self) -> bool:
        """Read them back; a state that was copied must be what it was."""
        assert self._written is not None
        self._verify_step()
        blocks, marks = self._written.blocks, self._written.last_marks
        self._pool.seen[blocks] = marks[:, None] ^ self._salts
        return not self._pool.holders[blocks].any()

    def reread(self, spans: Sequence[Span]) -> None:
        """Read the states of the step again, after all others have written."""
        self._verify_step()

    def forget(self, life: Life) -> None:
        """States are read in every step: nothing is remembered of them."""

    def _state(self, life: Life, num_tokens: int) -> _State:
        table, position = life.tables[self._nth], self._position(num_tokens)
        if isinstance(table, StateTable):
            at = table.positions.index(position) if position in table.positions else -1
        else:
            at = position - table.first_held
        blocks = table.ids[at * self._num_groups : (at + 1) * self._num_groups] if at >= 0 else []
        if not blocks:
            where = f"no block is at position {position} of its table"
            raise out_of_reach(life.writer, f"needs the state after {num_tokens} tokens, but {where}")
        return _State(life, num_tokens, position, blocks, life.marks[num_tokens - 1])

    def _joined(self, states: Sequence[_State]) -> Slots:
        """A state is the one slot of its block."""
        marks = np.array([state.mark for state in states])
        ones = np.ones(len(states), dtype=np.int64)
        return Slots(np.array([state.blocks for state in states]), ones, ones - 1, marks, marks)

    def _marks_of(self, slots: Slots) -> list[Marks]:
        return [places.marks(slots, self._salts) for places in self._pool.places[self._nth]]

    def _verify_step(self) -> None:
        self._verify(self._targets, self._marks)
        if self._left_alone:
            self._verify(self._left_alone, self._marks_of(self._joined(self._left_alone)))

    def _verify(self, states: Sequence[_State], all_marks: Sequence[Marks]) -> None:
        for marks in all_marks:
            wrong = self._pool.first_wrong(marks)
            if wrong is not None:
                state = states[wrong.slot]
                where = f"the state after {state.num_tokens} tokens of layer {wrong.layer} in block {wrong.block}"
                raise self._pool.wrong_mark(state.life.writer.name, wrong.block, wrong.found, where)
