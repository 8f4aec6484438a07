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

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kvcache.errors import InvariantError
from kvcache.managers import BlockTable, SingleTypeManager
from kvcache.managers.mamba import StateTable
from kvcache.specs import KVCacheSpec, cdiv
from simulator.marked_pool import MarkedPool, Places, Writer

__all__ = ["FIRST_READ", "Life", "Span", "StateTables", "Tables", "TokenTables"]

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
        """By position, further than the request gets."""
        self.tables = tables
        self.held = [_Held() for _ in tables]
        self.written = written
        """Tokens whose keys, values and states exist."""


class Span(NamedTuple):
    """What one request computes in a step, or in a row of steps: tokens `start` to `end` (exclusive)."""

    life: Life
    start: int
    end: int
    query: int
    """The first token that the last of the steps computes."""


class Tables(Protocol):
    """The block tables of one manager, as one step uses them."""

    def must_look(self, life: Life, num_computed: int) -> bool:
        """Whether what was computed up to now would be out of reach once the table has changed."""

    def before(self, spans: Sequence[Span]) -> None:
        """Look at the tables, and read what is read before anything is written."""

    def write(self) -> None:
        """Write what the step computes."""

    def after(self) -> None:
        """Read back what was written."""

    def is_intact(self) -> bool:
        """Whether all that the step reads was read back after it was last written, and was right."""

    def reread(self) -> None:
        """Read all that the step reads."""


class _Held:
    """A table as it was seen last, with what its blocks should hold."""

    __slots__ = ("blocks", "expected", "filled", "first", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.first = 0
        """Position of the first held block."""
        self.blocks = self.expected = np.empty(0, dtype=np.int64)
        """[positions x groups]: ids, and keys of the last token in each block."""
        self.filled = 0
        """Positions before it have their final key."""

    def look(self, table: BlockTable, num_groups: int) -> None:
        """Take over what has changed."""
        ids, first = table.ids, table.first_held
        if first == self.first and ids == self.ids:
            return
        dropped = (first - self.first) * num_groups
        kept = self.ids[dropped:] if dropped >= 0 else []
        if kept and ids[: len(kept)] == kept:
            new = np.array(ids[len(kept) :], dtype=np.int64)
            self.blocks = np.concatenate((self.blocks[dropped:], new))
            self.expected = np.concatenate((self.expected[dropped:], new))
        else:
            self.blocks = np.array(ids, dtype=np.int64)
            self.expected, self.filled = self.blocks.copy(), first
        self.ids, self.first = ids.copy(), first

    def expect(self, life: Life, end: int, block_size: int, salts: np.ndarray) -> None:
        """The blocks should hold the request's tokens up to `end`."""
        low, high = max(self.first, self.filled), cdiv(end, block_size)
        if high - low == 1:
            keys = life.marks[min(high * block_size, end) - 1] ^ salts
        else:
            last = np.minimum(np.arange(low + 1, high + 1) * block_size, end) - 1
            keys = (life.marks[last][:, None] ^ salts).ravel()
        self.expected[(low - self.first) * len(salts) : (high - self.first) * len(salts)] = keys
        self.filled = end // block_size


class _Slots(NamedTuple):
    """Slots of several requests: [groups, slots] blocks and keys, [slots] slots within their block."""

    blocks: np.ndarray
    slots: np.ndarray
    keys: np.ndarray


class TokenTables:
    """Block tables of attention: a slot for every token."""

    def __init__(self, nth: int, manager: SingleTypeManager, pool: MarkedPool) -> None:
        self._nth = nth
        self._spec: KVCacheSpec = manager.spec
        self._block_size = manager.block_size
        self._num_groups = manager.num_groups
        self._pool = pool
        self._salts = pool.group_salts[manager.groups.start : manager.groups.stop]
        self._rows = np.arange(manager.num_groups)[:, None]
        self._first_read = FIRST_READ[manager.spec.kind]
        self._spans: Sequence[Span] = ()
        self._written: _Slots | None = None
        self._was_intact = True

    def must_look(self, life: Life, num_computed: int) -> bool:
        """Whether tokens that are not written yet have left the reach."""
        return self._first_read(self._spec, num_computed) > life.written

    def before(self, spans: Sequence[Span]) -> None:
        """Look at the tables; the beginnings of blocks that are filled further must be intact."""
        self._spans = spans
        nth, size, num_groups = self._nth, self._block_size, self._num_groups
        tail_blocks, tail_keys = [], []
        for life, start, end, query in spans:
            table, held = life.tables[nth], life.held[nth]
            held.look(table, num_groups)
            if held.first * size > self._first_read(self._spec, query):
                raise self._out_of_reach(life, self._first_read(self._spec, query), "its block was given back")
            if (held.first + len(held.blocks) // num_groups) * size < end:
                raise self._out_of_reach(life, end - 1, "it has no block")
            if start % size and held.filled == start // size >= held.first:
                tail = slice((start // size - held.first) * num_groups, (start // size - held.first + 1) * num_groups)
                tail_blocks.append(held.blocks[tail])
                tail_keys.append(held.expected[tail])
            held.expect(life, end, size, self._salts)
        self._was_intact = self._are_seen(tail_blocks, tail_keys)

    def write(self) -> None:
        """Write the marks of all new tokens."""
        spans, pool = self._spans, self._pool
        self._written = written = self._slots(spans, [span.start for span in spans])
        writers = np.repeat([span.life.writer.number for span in spans], [span.end - span.start for span in spans])
        pool.writer[written.blocks] = writers
        for places in pool.places[self._nth]:
            pool.write(places, *self._of(places, written))

    def after(self) -> None:
        """Read them back; now these blocks are known to hold what they should."""
        assert self._written is not None
        written = self._written
        self._verify(self._spans, [span.start for span in self._spans], written)
        self._pool.seen[written.blocks] = written.keys  # of a block's tokens the last one counts

    def is_intact(self) -> bool:
        """Whether nobody has written into the held blocks since they were read back."""
        blocks, keys = [], []
        for life, _, end, _ in self._spans:
            held = life.held[self._nth]
            num_held = (cdiv(end, self._block_size) - held.first) * self._num_groups
            blocks.append(held.blocks[:num_held])
            keys.append(held.expected[:num_held])
        return self._was_intact and self._are_seen(blocks, keys)

    def _are_seen(self, blocks: list[np.ndarray], keys: list[np.ndarray]) -> bool:
        return not blocks or bool((self._pool.seen[np.concatenate(blocks)] == np.concatenate(keys)).all())

    def reread(self) -> None:
        """Read all tokens that the step attends to."""
        spans = self._spans
        firsts = [self._first_read(self._spec, span.query) for span in spans]
        slots = self._slots(spans, firsts)
        self._verify(spans, firsts, slots)
        self._pool.seen[slots.blocks] = slots.keys

    def _slots(self, spans: Sequence[Span], firsts: list[int]) -> _Slots:
        """The slots of each span's tokens from its first on, in every group."""
        size, num_groups = self._block_size, self._num_groups
        held = [span.life.held[self._nth] for span in spans]
        starts = np.array(firsts)
        counts = np.array([span.end for span in spans]) - starts
        lengths = np.array([len(each.blocks) for each in held])
        # Where a table's position 0 would be, if all tables stood one behind the other.
        origins = np.cumsum(lengths) - lengths - np.array([each.first for each in held]) * num_groups
        positions = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        entries = np.repeat(origins, counts) + positions // size * num_groups
        blocks = np.concatenate([each.blocks for each in held])[entries + self._rows]
        marks = np.concatenate([span.life.marks[first : span.end] for span, first in zip(spans, firsts, strict=True)])
        return _Slots(blocks, positions % size, marks ^ self._salts[:, None])

    def _of(self, places: Places, slots: _Slots) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The slots of those groups that have their marks at these places, one behind the other."""
        rows = places.rows
        if len(rows) == self._num_groups:
            blocks, keys = slots.blocks, slots.keys
        else:
            blocks, keys = slots.blocks[rows], slots.keys[rows]
        offsets = slots.slots if len(rows) == 1 else np.tile(slots.slots, len(rows))
        return blocks.ravel(), offsets, keys.ravel()

    def _verify(self, spans: Sequence[Span], firsts: list[int], slots: _Slots) -> None:
        for places in self._pool.places[self._nth]:
            entries = self._of(places, slots)
            if not self._pool.are_wrong(places, *entries):
                continue
            place, entry, found = self._pool.first_wrong(places, *entries)
            row, column = divmod(entry, len(slots.slots))
            ends = np.cumsum([span.end - first for span, first in zip(spans, firsts, strict=True)])
            number = int(np.searchsorted(ends, column, side="right"))
            position = spans[number].end - (int(ends[number]) - column)
            block, layer = int(entries[0][entry]), places.layers[row][place]
            where = f"token {position} of layer {layer} in block {block}, slot {slots.slots[column]},"
            raise self._pool.wrong_mark(spans[number].life.writer.name, block, found, where)

    def _out_of_reach(self, life: Life, position: int, why: str) -> InvariantError:
        return InvariantError(
            f"within-reach: request {life.writer.name} attends to token {position} in {self._num_groups} groups"
            f" of {self._spec.kind} layers, but {why}"
        )


class _State(NamedTuple):
    """A state of one request: its blocks, one in each group, and their keys."""

    life: Life
    num_tokens: int
    """Tokens that it stands for."""
    blocks: list[int]
    keys: np.ndarray


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

    def must_look(self, life: Life, num_computed: int) -> bool:
        """Whether the state stands at a block's end, or has moved into another block."""
        if num_computed == life.written:
            return False
        return num_computed % self._block_size == 0 or self._position(life.written) != self._position(num_computed)

    def _position(self, num_tokens: int) -> int:
        """Where the state that stands for so many tokens is."""
        return (num_tokens - 1) // self._block_size

    def before(self, spans: Sequence[Span]) -> None:
        """Read the states that the step starts from."""
        self._sources = [self._state(life, start) for life, start, _, _ in spans if start]
        self._targets = [self._state(life, end) for life, _, end, _ in spans]
        self._left_alone = [
            self._state(life, start)
            for life, start, end, _ in spans
            if start and self._position(start) != self._position(end)
        ]
        self._verify(self._sources)

    def write(self) -> None:
        """Write the states that the step ends with."""
        blocks, keys = self._joined(self._targets)
        numbers = [state.life.writer.number for state in self._targets]
        self._pool.writer[blocks] = np.repeat(numbers, self._num_groups).reshape(-1, self._num_groups)
        for places in self._pool.places[self._nth]:
            self._pool.write(places, blocks[:, places.rows].ravel(), 0, keys[:, places.rows].ravel())

    def after(self) -> None:
        """Read them back; a state that was copied must be what it was."""
        self._verify(self._targets)
        self._verify(self._left_alone)
        blocks, keys = self._joined(self._targets)
        self._pool.seen[blocks] = keys

    def is_intact(self) -> bool:
        """Everything was read in this step."""
        return True

    def reread(self) -> None:
        """Read the states again, after all others have written."""
        self._verify(self._targets)
        self._verify(self._left_alone)

    def _state(self, life: Life, num_tokens: int) -> _State:
        table, position = life.tables[self._nth], self._position(num_tokens)
        if isinstance(table, StateTable):
            at = table.positions.index(position) if position in table.positions else -1
        else:
            at = position - table.first_held
        blocks = table.ids[at * self._num_groups : (at + 1) * self._num_groups] if at >= 0 else []
        if not blocks:
            raise InvariantError(
                f"within-reach: request {life.writer.name} needs the state after {num_tokens} tokens,"
                f" but no block is at position {position} of its table"
            )
        return _State(life, num_tokens, blocks, life.marks[num_tokens - 1] ^ self._salts)

    def _joined(self, states: Sequence[_State]) -> tuple[np.ndarray, np.ndarray]:
        """[states, groups]: blocks and keys."""
        return np.array([state.blocks for state in states]), np.array([state.keys for state in states])

    def _verify(self, states: Sequence[_State]) -> None:
        if not states:
            return
        all_blocks, all_keys = self._joined(states)
        for places in self._pool.places[self._nth]:
            entries = (all_blocks[:, places.rows].ravel(), 0, all_keys[:, places.rows].ravel())
            if self._pool.are_wrong(places, *entries):
                place, entry, found = self._pool.first_wrong(places, *entries)
                number, row = divmod(entry, len(places.rows))
                state, block = states[number], int(entries[0][entry])
                where = f"the state after {state.num_tokens} tokens of layer {places.layers[row][place]} in block {block}"
                raise self._pool.wrong_mark(state.life.writer.name, block, found, where)
