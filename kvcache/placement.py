"""Where in the pool's memory each layer's pages lie, for every block id: offsets in bytes, no tensors.

For n groups of m layers there are m buffers, each shared by n layers, one of each group (the design
document's memory layout; vLLM 0.32 cuts them out of one allocation, as here):

```
# layer-outermost    | buffer 0: block 0 | block 1 | ... | buffer 1: block 0 | block 1 | ... |
# block-outermost    | block 0: page of layer 0, page of layer 1, ... | block 1: page of layer 0, ... |
```

Block-outermost is what vLLM's packed groups use: pages need not be equal, a group's layers lie side by
side within a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from kvcache.errors import KVCacheError
from kvcache.layout import KVCacheLayout
from kvcache.specs import DTYPE_BYTES, AttentionSpec, KVCacheSpec, MambaSpec, cdiv

__all__ = ["BLOCK_OUTERMOST", "LAYER_OUTERMOST", "LayerPages", "Part", "Placement", "parts_of", "place"]

LAYER_OUTERMOST = "layer-outermost"
BLOCK_OUTERMOST = "block-outermost"


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor inside each page of a layer: its keys, its values, a latent, or one of a state's tensors."""

    name: str
    offset_bytes: int
    """From the page's beginning."""
    shape: tuple[int, ...]
    """In one block."""
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes in one block."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerPages:
    """The pages of one layer: block `b` has the bytes from `start_bytes + b * stride_bytes` on."""

    layer: int
    """Index into the list of specs that was grouped."""
    group: int
    buffer: int
    """The buffer that it shares with a layer of every other group."""
    block_size: int
    start_bytes: int
    stride_bytes: int
    page_bytes: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The pool of a layout, laid out."""

    order: str
    num_blocks: int
    buffer_bytes: tuple[int, ...]
    """One after the other from byte 0 on."""
    layers: tuple[LayerPages, ...]
    """Group by group, in the order of their places."""

    @property
    def pool_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(self.buffer_bytes)

    def of_group(self, group: int) -> list[LayerPages]:
        """The layers of one group."""
        return [pages for pages in self.layers if pages.group == group]


def place(layout: KVCacheLayout, order: str = LAYER_OUTERMOST) -> Placement:
    """Lay out the pool of `layout`; its bytes are `layout.pool_bytes`, to the byte.

    Raises KVCacheError where pages differ between groups and the order is layer-outermost, and for pools whose
    groups have blocks of different bytes.
    """
    if not layout.pool_kind.is_one_size:
        raise KVCacheError("--back-with: pools of several sizes of blocks are not laid out (--grouping two-level)")
    pages_of = [tuple(spec.page_bytes for spec in group.specs) for group in layout.groups]
    block_bytes = layout.bytes_per_block if layout.groups else 0
    if order == BLOCK_OUTERMOST:
        buffers = [layout.num_blocks * block_bytes] if layout.groups else []
    else:
        buffers = [layout.num_blocks * page for page in _common_pages(pages_of)]
    starts = [0, *accumulate(buffers)]
    layers = []
    for number, (group, pages) in enumerate(zip(layout.groups, pages_of, strict=True)):
        inside = [0, *accumulate(pages)]
        for nth, (layer, spec, page) in enumerate(zip(group.layers, group.specs, pages, strict=True)):
            is_block = order == BLOCK_OUTERMOST
            layers.append(
                LayerPages(
                    layer=layer,
                    group=number,
                    buffer=0 if is_block else nth,
                    block_size=group.spec.block_size,
                    start_bytes=inside[nth] if is_block else starts[nth],
                    stride_bytes=block_bytes if is_block else page,
                    page_bytes=page,
                    parts=parts_of(spec),
                )
            )
    return Placement(order, layout.num_blocks, tuple(buffers), tuple(layers))


def _common_pages(pages_of: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The pages of each buffer: those of the largest group, with which all others must agree."""
    largest = max(pages_of, key=len, default=())
    if any(page != of_buffer for pages in pages_of for page, of_buffer in zip(pages, largest, strict=False)):
        raise KVCacheError(
            f"groups with pages of different bytes share no buffers: they are laid out {BLOCK_OUTERMOST}"
        )
    return largest


def parts_of(spec: KVCacheSpec) -> tuple[Part, ...]:
    """The tensors in one page.

    key and value: [block_size, kv_heads, head_size]; latent: [block_size, head_size]; states: as the model has them.
    A state's tensors begin at multiples of their element's bytes, if the page has room for that.
    """
    if isinstance(spec, MambaSpec):
        return _state_parts(spec)
    assert isinstance(spec, AttentionSpec)
    if spec.kind == "mla":
        return (Part("latent", 0, (spec.block_size, spec.head_size), spec.dtype),)
    value_size = spec.head_size if spec.head_size_v is None else spec.head_size_v
    key = Part("key", 0, (spec.block_size, spec.num_kv_heads, spec.head_size), spec.dtype)
    value = Part("value", key.num_bytes, (spec.block_size, spec.num_kv_heads, value_size), spec.dtype)
    return (key, value) if value_size else (key,)


def _state_parts(spec: MambaSpec) -> tuple[Part, ...]:
    names = (
        ("convolution", "recurrent") if len(spec.shapes) == 2 else [f"state {nth}" for nth in range(len(spec.shapes))]
    )
    for aligned in (True, False):  # without padding there may be no room to align; such parts have no typed view
        parts: list[Part] = []
        end = 0
        for name, shape, dtype in zip(names, spec.shapes, spec.dtypes, strict=True):
            element = DTYPE_BYTES[dtype] if aligned else 1
            parts.append(Part(name, cdiv(end, element) * element, shape, dtype))
            end = parts[-1].offset_bytes + parts[-1].num_bytes
        if end <= spec.page_bytes:
            break
    return tuple(parts)
