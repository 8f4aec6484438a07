"""A pool in which each written slot carries a mark of what it should hold: content, layer and position.

```
mark of a slot      content of its token ^ number of its group ^ number of its place in the group
                    (what and at which position)   (together: which layer)
```

Marks are real bytes of the pool, at the beginning of a token's key (or latent) and of each tensor of a
state. They are written and read where a layer's views have these bytes.
"""

from collections.abc import Iterator, Sequence
from math import gcd

import numpy as np

from kvcache.errors import InvariantError, KVCacheError
from kvcache.pages import MARK_BYTES, KVPages
from kvcache.placement import LayerPages
from simulator.token_content import TokenContent, mixed

__all__ = ["MarkedPool", "Places", "Writer", "out_of_reach"]

NOBODY = -1
MOST_AT_ONCE = 1 << 13
"""Marks: what is worked out for them stays in a processor's cache, and is too small to be mapped anew each time."""

FEW = 12
"""Blocks that are counted faster one by one."""

Marks = tuple[int, int, np.ndarray, np.ndarray]


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

    __slots__ = ("layers", "rows", "salts", "slot_words", "start_words", "stride_words")

    def __init__(self, rows: list[int], layers: list[list[int]], bounds: list[tuple[int, int, int]], word: int) -> None:
        """`rows` number the groups within their manager; `bounds` are (start, stride, slot) bytes of each place."""
        self.rows = rows
        self.layers = layers
        """For each row, the layer of each place."""
        starts, strides, slots = (
            np.array(column, dtype=np.int64)[:, None] // word for column in zip(*bounds, strict=True)
        )
        self.start_words = starts
        self.stride_words = strides if len(np.unique(strides)) > 1 else strides[:1]
        self.slot_words = slots if len(np.unique(slots)) > 1 else slots[:1]
        self.salts = _salts(len(bounds), stream=1)[:, None]

    def marks(self, blocks: np.ndarray, slots: np.ndarray | int, keys: np.ndarray) -> Iterator[Marks]:
        """(first place, first entry, where, what) of the marks of slots in blocks, a few thousand at once."""
        num_places, num_entries = len(self.salts), len(blocks)
        words = blocks * self.stride_words + slots * self.slot_words
        if num_places * num_entries <= MOST_AT_ONCE:
            yield 0, 0, self.start_words + words, self.salts ^ keys
            return
        for entry in range(0, num_entries, MOST_AT_ONCE):
            part = slice(entry, entry + MOST_AT_ONCE)
            some_words, some_keys = words[:, part], keys[part]
            for place in range(num_places):
                row = place % len(words)
                yield place, entry, some_words[row] + self.start_words[place], some_keys ^ self.salts[place]


class MarkedPool:
    """The pages of a pool, who wrote last into each block, and up to where a block was read back as it should be."""

    def __init__(self, pages: KVPages, managers_groups: Sequence[range]) -> None:
        """Raise KVCacheError where a slot is too small for a mark."""
        placement = pages.placement
        self.layers_of = [placement.of_group(group) for groups in managers_groups for group in groups]
        bounds = [_bounds(layers) for layers in self.layers_of]
        word = gcd(MARK_BYTES, *(number for group in bounds for numbers in group for number in numbers))
        self.words = pages.words(word)
        self.group_salts = _salts(len(bounds), stream=2)
        self.places = [_alike(groups, bounds, self.layers_of, word) for groups in managers_groups]
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

    def count_holders(self, blocks: list[int], change: int) -> None:
        """So many more places of block tables name each of these blocks, as often as it is listed."""
        if len(blocks) > FEW:
            np.add.at(self.holders, np.array(blocks, dtype=np.int64), change)
        else:
            for block in blocks:
                self.holders[block] += change

    def write(self, places: Places, blocks: np.ndarray, slots: np.ndarray | int, keys: np.ndarray) -> None:
        """Write marks; arrays of one entry per slot (and group)."""
        for _, _, words, marks in places.marks(blocks, slots, keys):
            self.words.write(words, marks)
        self.num_written += len(places.salts) * len(blocks)

    def are_wrong(self, places: Places, blocks: np.ndarray, slots: np.ndarray | int, keys: np.ndarray) -> bool:
        """Whether any mark differs from what it should be."""
        self.num_read += len(places.salts) * len(blocks)
        differ = [self.words.differ(words, marks) for _, _, words, marks in places.marks(blocks, slots, keys)]
        return any(differ)

    def first_wrong(
        self, places: Places, blocks: np.ndarray, slots: np.ndarray | int, keys: np.ndarray
    ) -> tuple[int, int, int]:
        """(place, entry, mark found) of the first mark that is wrong."""
        for first_place, first_entry, words, marks in places.marks(blocks, slots, keys):
            found = np.atleast_2d(self.words.read(words))
            wrong = np.argwhere(found != marks)
            if len(wrong):
                place, entry = wrong[0].tolist()
                return first_place + place, first_entry + entry, int(found[place, entry])
        raise ValueError("no mark is wrong")

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
    groups: range, bounds: Sequence[list[tuple[int, int, int]]], layers: Sequence[list[LayerPages]], word: int
) -> list[Places]:
    """The groups of one manager, those with their marks at equal places together."""
    rows_of: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(tuple(bounds[group]), []).append(row)
    return [
        Places(
            rows,
            [
                [pages.layer for pages in layers[groups[row]] for _ in range(len(key) // len(layers[groups[row]]))]
                for row in rows
            ],
            list(key),
            word,
        )
        for key, rows in rows_of.items()
    ]
