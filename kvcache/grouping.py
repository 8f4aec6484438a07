"""From layers to KV cache groups: which layers share a block table, and how pages become equal.

Every group draws its blocks from one pool, so a block must take the same bytes whichever group owns it.
The decisions, in vLLM 0.32's order: hybrid manager off, all layers alike, one attention type, and
otherwise pages made equal and layers cut into groups of equal size.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kvcache.errors import UnsupportedLayersError
from kvcache.specs import KVCacheSpec, cdiv

__all__ = ["KVCacheGroup", "alike_runs", "group_layers"]

# A type with fewer than this many times the layers of the smallest one is padded up instead of cut
# into groups of the smallest size (vLLM 0.32).
PAD_BELOW_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that share one block table."""

    spec: KVCacheSpec
    """What each of them keeps; block size and rules are the same for all."""
    layers: tuple[int, ...]
    """Indices into the list of specs that was grouped."""
    num_padding_layers: int = 0
    """Places in each block that no layer uses, because another group is larger."""
    layer_specs: tuple[KVCacheSpec, ...] = ()
    """What each layer keeps, where layers of one type differ: in the bytes of a page, or in what they read."""

    def among(self, members: Collection[int]) -> "KVCacheGroup":
        """The group with those of its layers that are `members`: what one stage of a pipeline has of it."""
        kept = [place for place, layer in enumerate(self.layers) if layer in members]
        return replace(
            self,
            layers=tuple(self.layers[place] for place in kept),
            layer_specs=tuple(self.layer_specs[place] for place in kept) if self.layer_specs else (),
        )

    @property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        """What each of its layers keeps."""
        return self.layer_specs or (self.spec,) * len(self.layers)

    @property
    def bytes_per_block(self) -> int:
        """Bytes that the group's own layers take in one block."""
        return sum(spec.page_bytes for spec in self.layer_specs) or len(self.layers) * self.spec.page_bytes


def alike_runs(groups: Sequence[KVCacheGroup]) -> list[list[KVCacheGroup]]:
    """Neighbouring groups with the same spec: one attention type manages each run of them."""
    return [list(alike) for _, alike in groupby(groups, key=lambda group: group.spec)]


def group_layers(specs: Sequence[KVCacheSpec], hybrid: bool = True) -> list[KVCacheGroup]:
    """Split layers into groups whose blocks take equal bytes, as vLLM 0.32 does.

    `specs` has one entry per layer that keeps something, in the model's order. With `hybrid` off,
    windows and chunks beside full attention are kept whole, as if they were full.

    Raises UnsupportedLayersError where vLLM refuses these layers.
    """
    if not hybrid:
        specs = _keep_everything(specs)
    all_layers = tuple(range(len(specs)))
    if not specs:
        return []
    if _are_alike(specs) or _are_one_type(specs):
        return [KVCacheGroup(specs[0], all_layers, layer_specs=tuple(specs) if len(set(specs)) > 1 else ())]
    return _cut_into_equal_groups(_with_equal_pages(specs))


def _are_alike(specs: Sequence[KVCacheSpec]) -> bool:
    return len({spec.unmarked for spec in specs}) == 1 and len(set(specs) - {specs[0].unmarked}) <= 1


def _are_one_type(specs: Sequence[KVCacheSpec]) -> bool:
    return len({spec.type_key for spec in specs}) == 1


def _keep_everything(specs: Sequence[KVCacheSpec]) -> list[KVCacheSpec]:
    """What each layer keeps while the hybrid manager is off."""
    if not specs or _are_alike(specs) or _are_one_type(specs):
        return list(specs)
    full_block_sizes = {spec.block_size for spec in specs if spec.type_key[0] == "full"}
    if not full_block_sizes:
        raise UnsupportedLayersError("the hybrid manager cannot be off: these layers have no full attention among them")
    one_size = min(full_block_sizes) if len(full_block_sizes) == 1 else None
    kept = [spec.keeping_everything(one_size or spec.block_size) for spec in specs]
    windows = {spec.type_key[-1] for spec in specs if spec.kind == "sliding"}
    if len(windows) > 1:
        raise UnsupportedLayersError(
            f"the hybrid manager cannot be off for layers of several windows ({', '.join(map(str, windows))})"
        )
    if not _are_one_type(kept):
        raise UnsupportedLayersError("the hybrid manager cannot be off: these layers do not become one attention type")
    return kept


def _with_equal_pages(specs: Sequence[KVCacheSpec]) -> list[KVCacheSpec]:
    """Every page as large as the largest: by larger blocks, or by padding."""
    page_bytes = max(spec.page_bytes for spec in specs)
    try:
        return [spec if spec.page_bytes == page_bytes else spec.with_page_bytes(page_bytes) for spec in specs]
    except ValueError as error:
        raise UnsupportedLayersError(str(error)) from None


def _cut_into_equal_groups(specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
    buckets: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(layer)
    size = _group_size([len(layers) for layers in buckets.values()])
    groups = []
    for spec, layers in buckets.items():
        num_groups = cdiv(len(layers), size)
        # Strided, so that every pipeline stage gets its share of every group.
        for members in (tuple(layers[first::num_groups]) for first in range(num_groups)):
            groups.append(KVCacheGroup(spec, members, num_padding_layers=size - len(members)))
    return groups


def _group_size(bucket_sizes: Sequence[int]) -> int:
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < smallest * PAD_BELOW_RATIO else smallest
