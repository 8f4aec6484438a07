"""Blocks of equal bytes, filled with as many layers as fit: groups whose layers keep pages of their own size.

# one block              | block_bytes                                  |
# group of full layers   | page    | page    | page    | page    | page |
# group of states        | state       | state       | state       |  .  |   . no layer uses
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvcache.grouping import KVCacheGroup
from kvcache.specs import KVCacheSpec, MambaSpec

__all__ = ["Bucket", "buckets_by_type", "packings", "unpadded"]


@dataclass(frozen=True)
class Bucket:
    """Layers of one type: they need the same blocks, whatever their pages."""

    specs: tuple[KVCacheSpec, ...]
    layers: tuple[int, ...]

    @property
    def page_bytes(self) -> int:
        """Of all layers together."""
        return sum(spec.page_bytes for spec in self.specs)

    def _dealt(self, num_groups: int) -> list[list[int]]:
        """Places in the bucket, dealt out in turn, those of equal pages one after the other."""
        in_turn = sorted(range(len(self.layers)), key=lambda place: self.specs[place].page_bytes)
        return [sorted(in_turn[first::num_groups]) for first in range(num_groups)]

    @cached_property
    def splits(self) -> list[int]:
        """Bytes of the largest group's pages when the layers are dealt out to 1, 2, ... groups."""
        return [
            max(sum(self.specs[place].page_bytes for place in places) for places in self._dealt(number))
            for number in range(1, len(self.layers) + 1)
        ]

    def groups_in(self, block_bytes: int) -> list[KVCacheGroup]:
        """As few groups as fit into blocks of `block_bytes`, which hold at least one layer."""
        number = next(number for number, largest in enumerate(self.splits, 1) if largest <= block_bytes)
        return [self._group(places, block_bytes) for places in self._dealt(number)]

    def _group(self, places: Sequence[int], block_bytes: int) -> KVCacheGroup:
        specs = tuple(self.specs[place] for place in places)
        layers = tuple(self.layers[place] for place in places)
        if len(set(specs)) > 1:
            return KVCacheGroup(self.specs[0], layers, layer_specs=specs)
        return KVCacheGroup(specs[0], layers, num_padding_layers=block_bytes // specs[0].page_bytes - len(layers))


def buckets_by_type(specs: Sequence[KVCacheSpec]) -> list[Bucket]:
    """In order of first appearance."""
    layers_of: dict[tuple[object, ...], list[int]] = {}
    for layer, spec in enumerate(specs):
        layers_of.setdefault(spec.type_key, []).append(layer)
    return [Bucket(tuple(specs[layer] for layer in layers), tuple(layers)) for layers in layers_of.values()]


def unpadded(spec: KVCacheSpec) -> KVCacheSpec:
    """A state in a page of its own size; attention as it is."""
    return spec.with_page_bytes(spec.content_bytes) if isinstance(spec, MambaSpec) else spec


def packings(buckets: Sequence[Bucket], least_bytes: int) -> list[tuple[int, list[KVCacheGroup]]]:
    """(bytes of a block, groups) for each block, from `least_bytes`, that some type fills with some share of it."""
    largest_page = max(spec.page_bytes for bucket in buckets for spec in bucket.specs)
    sizes = sorted({size for bucket in buckets for size in bucket.splits if size >= max(largest_page, least_bytes)})
    return [(size, [group for bucket in buckets for group in bucket.groups_in(size)]) for size in sizes]
