"""A pool in which each written slot carries a mark of what it should hold: content, layer and position.

```
mark of a slot      content of its token ^ number of its group ^ number of its place in the group
                    (what and at which position)   (together: which layer)
```

Marks are real bytes of the pool, at the beginning of a token's key (or latent) and of each tensor of a
state. They are written and read where a layer's views have these bytes.

Not every layer needs a mark: all layers of a group follow one block table, so a wrong block is wrong in each of
them. A block has its turn instead, one of the places that all groups have, whoever holds it:

```
# 3 turns       place 0    place 1    place 2    place 3    place 4
# turn 0           x                                x                  whoever writes here next, in any group,
# turn 1                      x                                x       writes over a mark of this block
# turn 2                                 x
```
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import gcd
from typing import NamedTuple

import numpy as np

from kvcache.errors import InvariantError, KVCacheError
from kvcache.pages import MARK_BYTES, KVPages
from kvcache.placement import LayerPages
from simulator.token_content import TokenContent, mixed

__all__ = ["MarkedPool", "Marks", "Slots", "Writer", "out_of_reach"]

NOBODY = -1


class Slots(NamedTuple):
    """Slots that lie block by block in some blocks, the same in several groups."""

    blocks: np.ndarray
    """[blocks, groups]."""
    num_slots: np.ndarray
    """In each block."""
    offsets: np.ndarray
    """Of each slot in its block."""
    marks: np.ndarray
    """For each slot, what its token is."""
    last_marks: np.ndarray
    """For each block, what its last token is."""


class Marks(NamedTuple):
    """Marks: where they are and what they should be, one layer of a block after the other."""

    words: np.ndarray
    values: np.ndarray
    slots: np.ndarray
    """Numbers of their slots."""
    ends: np.ndarray
    """For each layer of a block, where its marks end."""
    blocks: np.ndarray
    layers: np.ndarray


class Wrong(NamedTuple):
    """A mark that is not what it should be."""

    layer: int
    block: int
    slot: int
    """The number of the slot."""
    found: int


class Turns(NamedTuple):
    """Which places of a block have marks: every `num`-th, from the block's own turn on."""

    num: int
    of_block: np.ndarray
    """By block: 0 to `num` - 1."""


class Writer:
    """Who wrote: a request, from its admission until it gives its blocks back."""

    __slots__ = ("content", "name", "num_tokens", "number")

    def __init__(self, number: int, name: str, content: TokenContent, num_tokens: int) -> None:
        self.number = number
        self.name = name
        self.content = content
        self.num_tokens = num_tokens


class Places:
    """Groups whose layers have their marks at the same bytes of a block."""

    def __init__(
        self,
        rows: list[int],
        layers: list[list[int]],
        bounds: Sequence[tuple[int, int, int]],
        word: int,
        turns: Turns,
    ) -> None:
        """`rows` number the groups within their manager; `bounds` are (start, stride, slot) bytes of each place."""
        self._rows = np.array(rows)
        self._layers = np.array(layers)
        """[rows, places]."""
        num_parts = len(bounds) // len(set(layers[0]))
        self._first_places = turns.of_block * num_parts
        rounds = np.arange(0, len(bounds), turns.num * num_parts)[:, None] + np.arange(num_parts)
        self._more_places = rounds.ravel()[:, None, None]
        starts, strides, slots = (np.array(column, dtype=np.int64) // word for column in zip(*bounds, strict=True))
        self._start_words = starts
        self._stride_words = strides
        self._slot_words = slots
        self._have_own_slots = len(set(slots.tolist())) > 1
        self._salts = _salts(len(bounds), stream=1)

    def marks(self, slots: Slots, group_salts: np.ndarray) -> Marks:
        """The marks of slots in these groups; `group_salts` are those of all groups of their manager."""
        turn_places = self._first_places[slots.blocks].T[self._rows] + self._more_places
        is_place = turn_places < len(self._salts)
        places = turn_places[is_place]
        _, row, nth = np.nonzero(is_place)
        groups = self._rows[row]
        blocks, layers = slots.blocks[nth, groups], self._layers[row, places]
        slot_words, values = self._slot_words[places], group_salts[groups] ^ self._salts[places]
        words = self._start_words[places] + blocks * self._stride_words[places]
        if len(slots.marks) == len(slots.num_slots):  # one in each: decodes, states
            words += slots.offsets[nth] * slot_words
            return Marks(words, values ^ slots.marks[nth], nth, np.arange(1, len(nth) + 1), blocks, layers)
        counts = slots.num_slots[nth]
        ends = counts.cumsum()
        firsts = slots.num_slots.cumsum()[nth] - counts
        numbers = np.arange(ends[-1]) + (firsts - ends + counts).repeat(counts)
        # Slots of a block lie one after the other: where its slot number 0 would be, and from there by numbers.
        words += (slots.offsets[firsts] - firsts) * slot_words
        words = words.repeat(counts) + numbers * (slot_words.repeat(counts) if self._have_own_slots else slot_words[0])
        return Marks(words, values.repeat(counts) ^ slots.marks[numbers], numbers, ends, blocks, layers)


class MarkedPool:
    """The pages of a pool, who wrote last into each block, and up to where a block was read back as it should be."""

    def __init__(self, pages: KVPages, managers_groups: Sequence[range], *, every_layer: bool = False) -> None:
        """A block has marks in the layers whose turn it is, or in every layer.

        Raises KVCacheError where a slot is too small for a mark.
        """
        placement = pages.placement
        self.layers_of = [placement.of_group(group) for groups in managers_groups for group in groups]
        bounds = [_bounds(layers) for layers in self.layers_of]
        word = gcd(MARK_BYTES, *(number for group in bounds for numbers in group for number in numbers))
        self.words = pages.words(word)
        self.group_salts = _salts(len(bounds), stream=2)
        self.turns = _turns(placement.num_blocks, [] if every_layer else self.layers_of)
        self.places = [
            [Places(rows, layers, numbers, word, self.turns) for numbers, rows, layers in alike]
            for alike in (_alike(groups, bounds, self.layers_of) for groups in managers_groups)
        ]
        self.writer = np.full(placement.num_blocks, NOBODY, dtype=np.int64)
        self.seen = np.zeros(placement.num_blocks, dtype=np.int64)
        """By block: the key of the last token that was read back from it, all before that one being right."""
        self.holders = np.zeros(placement.num_blocks, dtype=np.int64)
        """By block: how many places of the living requests' tables name it, states apart."""
        self.writers: dict[int, Writer] = {}
        self.num_written = self.num_read = 0
        """Marks."""
        self._next_prune = 2 * placement.num_blocks

    @property
    def num_touched(self) -> int:
        """Blocks that were ever written."""
        return int((self.writer != NOBODY).sum())

    def add_writer(self, writer: Writer) -> None:
        """Remember a request until nothing that it wrote is left."""
        self.writers[writer.number] = writer
        if len(self.writers) > self._next_prune:
            left = set(self.writer.tolist())
            self.writers = {n: w for n, w in self.writers.items() if n in left or n == writer.number}
            self._next_prune = len(self.writers) + 2 * len(self.writer)

    def count_holders(self, blocks: np.ndarray, change: int) -> None:
        """So many more places of block tables name each of these blocks, as often as it is listed."""
        np.add.at(self.holders, blocks, change)

    def write(self, marks: Marks) -> None:
        """Write marks."""
        self.words.write(marks.words, marks.values)
        self.num_written += len(marks.words)

    def first_wrong(self, marks: Marks) -> Wrong | None:
        """Read marks; the first that differs from what it should be."""
        self.num_read += len(marks.words)
        if not self.words.differ(marks.words, marks.values):
            return None
        found = self.words.read(marks.words)
        nth = int(np.argmax(found != marks.values))
        of_block = int(np.searchsorted(marks.ends, nth, side="right"))
        return Wrong(int(marks.layers[of_block]), int(marks.blocks[of_block]), int(marks.slots[nth]), int(found[nth]))

    def wrong_mark(self, reader: str, block: int, found: int, where: str) -> InvariantError:
        """The error for a mark that is not its reader's; `where` says what should be there."""
        return InvariantError(f"own-marks: request {reader} reads {where} and finds {self._describe(block, found)}")

    def _describe(self, block: int, found: int) -> str:
        """Who wrote what was found in a block."""
        writer = self.writers.get(int(self.writer[block]))
        if writer is None:
            return "what nobody has written"
        marks = writer.content.marks(writer.num_tokens)
        for group, layers in enumerate(self.layers_of):
            salts = _salts(len(_bounds(layers)), stream=1)
            per_layer = len(salts) // len(layers)
            for place, salt in enumerate(salts):
                (positions,) = np.nonzero(marks == found ^ int(salt) ^ int(self.group_salts[group]))
                if len(positions):
                    layer = layers[place // per_layer].layer
                    return f"what request {writer.name} wrote for token {positions[0]} of layer {layer}"
        return f"what somebody wrote before request {writer.name}, the last that wrote into the block"


def out_of_reach(reader: Writer, what: str) -> InvariantError:
    """The error for a request without a block for what it needs."""
    return InvariantError(f"within-reach: request {reader.name} {what}")


def _salts(count: int, stream: int) -> np.ndarray:
    return mixed(np.arange(count, dtype=np.uint64) + np.uint64(stream << 32)).view(np.int64)


def _bounds(layers: Sequence[LayerPages]) -> list[tuple[int, int, int]]:
    """(start, stride, slot) bytes of each layer's marks: one in a token's first part, one in each part of a state."""
    bounds = []
    for pages in layers:
        per_token = pages.parts[0].name in ("key", "latent", "bytes")
        for part in pages.parts[:1] if per_token else pages.parts:
            slot_bytes = part.num_bytes // pages.block_size if per_token else 0
            if (slot_bytes if per_token else part.num_bytes) < MARK_BYTES:
                raise KVCacheError(
                    f"--back-with: the {part.name} of layer {pages.layer} has no room for a mark of {MARK_BYTES} bytes"
                )
            bounds.append((pages.start_bytes + part.offset_bytes, pages.stride_bytes, slot_bytes))
    return bounds


def _alike(
    groups: range, bounds: Sequence[list[tuple[int, int, int]]], layers: Sequence[list[LayerPages]]
) -> Iterator[tuple[tuple[tuple[int, int, int], ...], list[int], list[list[int]]]]:
    """The groups of one manager, those with their marks at equal places together: (bounds, rows, layers by row)."""
    rows_of: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(tuple(bounds[group]), []).append(row)
    for key, rows in rows_of.items():
        per_layer = len(key) // len(layers[groups[rows[0]]])
        yield key, rows, [[pages.layer for pages in layers[groups[row]] for _ in range(per_layer)] for row in rows]


def _turns(num_blocks: int, layers_of: Sequence[list[LayerPages]]) -> Turns:
    """As many turns as there are places which all groups have, at the same bytes of a block."""
    where = [[(pages.start_bytes, pages.stride_bytes, pages.page_bytes) for pages in layers] for layers in layers_of]
    shared = takewhile(lambda of_groups: len(set(of_groups)) == 1, zip(*where, strict=False))
    num_turns = max(len(list(shared)), 1)
    # By chance, or a group that always gets every eighth block would always have the same turn.
    return Turns(num_turns, _salts(num_blocks, stream=3) % num_turns)
