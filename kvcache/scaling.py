"""A pool of thinner pages: the same blocks, groups and tables, with fewer bytes behind each slot.

What a small device can hold of a large pool. Every page is divided by the same power of two: heads first,
then the elements of a head, so pages that were equal stay equal.
"""

from dataclasses import replace
from math import gcd, prod

from kvcache.errors import KVCacheError
from kvcache.grouping import KVCacheGroup
from kvcache.layout import KVCacheLayout
from kvcache.specs import DTYPE_BYTES, AttentionSpec, KVCacheSpec, MambaSpec

__all__ = ["LEAST_BYTES", "thinned"]

LEAST_BYTES = 8
"""Of a key, a latent and each tensor of a state: what a mark takes."""


def thinned(layout: KVCacheLayout, fraction: float) -> tuple[KVCacheLayout, int]:
    """The layout with every page divided by the largest power of two that gives at least `fraction` of it.

    Gives back that divisor too. Raises KVCacheError where no such pages hold `LEAST_BYTES` in each part.
    """
    divisor = 1
    while 1 / (2 * divisor) >= fraction:
        divisor *= 2
    if divisor == 1:
        return layout, 1
    try:
        groups = tuple(_thin_group(group, divisor) for group in layout.groups)
    except ValueError as error:
        raise KVCacheError(f"--pool-fraction: pages cannot be divided by {divisor}: {error}") from None
    return replace(layout, groups=groups), divisor


def _thin_group(group: KVCacheGroup, divisor: int) -> KVCacheGroup:
    return replace(
        group,
        spec=_thin(group.spec, divisor),
        layer_specs=tuple(_thin(spec, divisor) for spec in group.layer_specs),
    )


def _thin(spec: KVCacheSpec, divisor: int) -> KVCacheSpec:
    padded = getattr(spec, "padded_page_bytes", None)
    page_bytes = None if padded is None else _quotient(padded, divisor, "bytes of a page")
    if isinstance(spec, MambaSpec):
        shapes = []
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
            shapes.append((max(prod(shape) // divisor, 1),))
            _check_room(shapes[-1][0] * DTYPE_BYTES[dtype], "state")
        page_bytes = page_bytes or _quotient(spec.page_bytes, divisor, "bytes of a page")
        return replace(spec, shapes=tuple(shapes), padded_page_bytes=page_bytes)
    assert isinstance(spec, AttentionSpec)
    of_heads = gcd(spec.num_kv_heads, divisor)
    of_elements = divisor // of_heads
    key_size = _quotient(spec.head_size, of_elements, "elements of a head")
    value_size = None if spec.head_size_v is None else _quotient(spec.head_size_v, of_elements, "elements of a head")
    thin = replace(
        spec,
        num_kv_heads=spec.num_kv_heads // of_heads,
        head_size=key_size,
        head_size_v=value_size,
        padded_page_bytes=page_bytes,
    )
    _check_room(thin.num_kv_heads * key_size * DTYPE_BYTES[spec.dtype], "key")
    return thin


def _quotient(number: int, divisor: int, what: str) -> int:
    if number % divisor:
        raise ValueError(f"{number:,} {what} are no multiple of {divisor}")
    return number // divisor


def _check_room(num_bytes: int, what: str) -> None:
    if num_bytes < LEAST_BYTES:
        raise ValueError(f"{num_bytes} bytes of a {what} would be left, a mark takes {LEAST_BYTES}")
