"""Shapes of models for the conformance scenarios, and the pool that each of them needs.

A shape draws the layers, and whatever else a server would set because of them. `blocks_for_longest` says
below which pool vLLM refuses to start; it is worked out here a second time, and only for pools to be
drawn just above that.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

__all__ = [
    "SHAPES",
    "Scenario",
    "Shape",
    "attention",
    "blocks_for_longest",
    "groups_of",
    "mamba_layer",
    "mamba_partial",
    "odd_chunk",
]

Scenario = dict[str, Any]
Layer = dict[str, Any]
Shape = Callable[[Random, int], Scenario]


def attention(kind: str, count: int, **more: int) -> Layer:
    return {"kind": kind, "count": count, "kv_heads": 1, "head_size": 64, **more}


def _window(rng: Random, block: int) -> int:
    """A window of a few blocks, often not a whole number of them."""
    return max(2, rng.choice((1, 2, 3, 4, 6)) * block + rng.choice((0, 0, 0, -1, 1, rng.randrange(block))))


def _full(rng: Random, block: int) -> Scenario:
    return {"layers": [attention("full", rng.randint(1, 4))]}


def _sliding(rng: Random, block: int) -> Scenario:
    return {"layers": [attention("sliding", rng.randint(1, 4), window=_window(rng, block))]}


def _gemma3(rng: Random, block: int) -> Scenario:
    """Several sliding layers to one full one, which makes many groups."""
    sliding = rng.choice((2, 3, 5, 5))
    layers = [attention("sliding", sliding, window=_window(rng, block)), attention("full", 1)]
    tail = [attention("sliding", rng.randint(1, 2), window=layers[0]["window"])] if rng.random() < 0.4 else []
    repeats = rng.randint(1, 4)
    if tail:
        return {"layers": layers * repeats + tail}
    return {"layers": layers, "pattern_repeat": repeats}


def _gpt_oss(rng: Random, block: int) -> Scenario:
    """Sliding and full layers in turn."""
    layers = [attention("sliding", 1, window=_window(rng, block)), attention("full", 1)]
    return {"layers": layers, "pattern_repeat": rng.choice((1, 3, 6, 12))}


def _chunk(rng: Random, block: int) -> int:
    return rng.choice((2, 2, 2, 3, 4, 8)) * block


def _llama4(rng: Random, block: int) -> Scenario:
    """Several chunked layers to one full one."""
    layers = [attention("chunked", rng.choice((1, 2, 3, 3)), chunk=_chunk(rng, block)), attention("full", 1)]
    if rng.random() < 0.15:
        layers.append(attention("chunked", 1, chunk=layers[0]["chunk"] + block))
    return {"layers": layers, "pattern_repeat": rng.choice((1, 2, 4))}


def _chunked(rng: Random, block: int) -> Scenario:
    return {"layers": [attention("chunked", rng.randint(1, 4), chunk=_chunk(rng, block))]}


def mamba_layer(rng: Random, count: int, page_bytes: int) -> Layer:
    """A convolution and a recurrent state that together fill most of a page."""
    inner = max(1, rng.randint(page_bytes * 2 // 3, page_bytes) // (3 * 2 + 16 * 4))
    return {"kind": "mamba", "count": count, "shapes": [[3, inner], [inner, 16]], "dtypes": ["bfloat16", "float32"]}


def _padded_mamba(rng: Random, block: int, count: int, attention_token_bytes: int = 256) -> tuple[Layer, Scenario]:
    page = block * attention_token_bytes
    return mamba_layer(rng, count, page), {"mamba_page_size_padded": page}


def _jamba(rng: Random, block: int) -> Scenario:
    """Several Mamba layers to one full one; state pages are padded to the attention page."""
    mamba, padding = _padded_mamba(rng, block, rng.choice((1, 3, 7)))
    layers = [mamba, attention("full", 1)]
    return {"layers": layers, "pattern_repeat": rng.choice((1, 2, 4)), "mamba_cache_mode": "align", **padding}


def _jamba_none(rng: Random, block: int) -> Scenario:
    """One state for a request's whole life, as a server without prefix caching keeps it."""
    return {**_jamba(rng, block), "mamba_cache_mode": "none", "prefix_caching": False}


def _mamba(rng: Random, block: int) -> Scenario:
    layer = mamba_layer(rng, rng.randint(1, 4), block * 256)
    mode = rng.choice(("align", "align", "none"))
    return {"layers": [layer], "mamba_cache_mode": mode, "prefix_caching": mode == "align"}


def _mla_layer(rng: Random, count: int) -> Layer:
    return {"kind": "mla", "count": count, "head_size": rng.choice((64, 576))}


def _mla(rng: Random, block: int) -> Scenario:
    return {"layers": [_mla_layer(rng, rng.randint(1, 4))]}


def _mla_mixed(rng: Random, block: int) -> Scenario:
    """MLA with other attention: of equal pages, of pages that divide, or else everything is kept in full."""
    other = rng.choice((attention("full", 1), attention("sliding", 2, window=_window(rng, block))))
    head_size = rng.choice((128, 256, 192, 64))
    return {"layers": [{"kind": "mla", "count": rng.randint(1, 2), "head_size": head_size}, other]}


def _mla_mamba(rng: Random, block: int) -> Scenario:
    mla = _mla_layer(rng, 1)
    mamba, padding = _padded_mamba(rng, block, rng.choice((1, 3)), mla["head_size"] * 2)
    return {"layers": [mamba, mla], "pattern_repeat": rng.choice((1, 2, 3)), "mamba_cache_mode": "align", **padding}


def _full_sliding_mamba(rng: Random, block: int) -> Scenario:
    mamba, padding = _padded_mamba(rng, block, rng.randint(1, 3))
    layers = [attention("full", 1), attention("sliding", rng.randint(1, 2), window=_window(rng, block)), mamba]
    rng.shuffle(layers)
    return {"layers": layers, "mamba_cache_mode": "align", **padding}


def _two_windows(rng: Random, block: int) -> Scenario:
    layers = [attention("sliding", rng.randint(1, 3), window=_window(rng, block)) for _ in range(2)]
    if layers[0]["window"] == layers[1]["window"]:
        layers[1]["window"] += block
    if rng.random() < 0.75:
        layers.insert(rng.randrange(3), attention("full", rng.randint(1, 2)))
    return {"layers": layers}


def _full_chunked_sliding(rng: Random, block: int) -> Scenario:
    layers = [
        attention("full", 1),
        attention("chunked", rng.randint(1, 2), chunk=_chunk(rng, block)),
        attention("sliding", rng.randint(1, 2), window=_window(rng, block)),
    ]
    rng.shuffle(layers)
    return {"layers": layers}


def _unequal_heads(rng: Random, block: int) -> Scenario:
    """Heads of different sizes: pages grow by a larger block where they divide, else by padding."""
    small, large = rng.choice(((64, 128), (64, 256), (32, 96), (64, 96), (80, 128)))
    sizes = [small, large]
    rng.shuffle(sizes)
    window = _window(rng, block)
    layers = [
        attention("sliding", rng.randint(1, 3), window=window) | {"head_size": sizes[0]},
        attention("full", rng.randint(1, 2)) | {"head_size": sizes[1]},
    ]
    return {"layers": layers, "pattern_repeat": rng.choice((1, 2))}


def _unequal_types(rng: Random, block: int) -> Scenario:
    """Three types, one of them with larger blocks than the others."""
    if rng.random() < 0.5:
        layers = [attention("chunked", 2, chunk=4 * block), attention("full", 1) | {"head_size": 128}]
        return {"layers": layers}
    mamba, padding = _padded_mamba(rng, block, rng.randint(1, 3), 512)
    sizes = [64, 128]
    rng.shuffle(sizes)
    full = attention("full", 1) | {"head_size": sizes[0]}
    sliding = attention("sliding", 1, window=_window(rng, block)) | {"head_size": sizes[1]}
    return {"layers": [mamba, full, sliding], "mamba_cache_mode": "align", **padding}


def _two_states(rng: Random, block: int) -> Scenario:
    """Mamba layers of two shapes beside full attention."""
    mamba, padding = _padded_mamba(rng, block, rng.randint(1, 3))
    (taps, inner), recurrent = mamba["shapes"]
    other = mamba | {"count": rng.randint(1, 2), "shapes": [[taps - 1, inner], recurrent]}
    return {"layers": [mamba, other, attention("full", 1)], "mamba_cache_mode": "align", **padding}


def _uniform_type(rng: Random, block: int) -> Scenario:
    """Layers of one type with different heads form one group without padding."""
    sizes = rng.sample((32, 48, 64, 96, 128), 2)
    window = _window(rng, block)
    kind: dict[str, Any] = {"kind": "full"} if rng.random() < 0.7 else {"kind": "sliding", "window": window}
    return {"layers": [{**kind, "count": rng.randint(1, 2), "kv_heads": 1, "head_size": size} for size in sizes]}


def _hybrid_off(rng: Random, block: int) -> Scenario:
    made = rng.choice((_gemma3, _gpt_oss, _llama4))(rng, block)
    windows = {(layer["kind"], layer.get("window", layer.get("chunk"))) for layer in made["layers"]}
    return {**made, "hybrid": len(windows) > 2}  # of two windows, or chunks, only hybrid groups can be made


def odd_chunk(rng: Random, block: int) -> Scenario:
    """Chunks that end inside a block."""
    chunked = attention("chunked", rng.randint(1, 2), chunk=rng.choice((1, 2, 3, 4)) * block + rng.randrange(1, block))
    return {"layers": [chunked, attention("full", 1)][: rng.randint(1, 2)]}


def mamba_partial(rng: Random, block: int) -> Scenario:
    """States less often than attention blocks, so that a hit may end inside a state's block."""
    ratio = rng.choice((2, 3, 4))
    mamba, padding = _padded_mamba(rng, block, rng.choice((1, 3)))
    layers = [mamba, attention("full", 1)]
    return {"layers": layers, "mamba_cache_mode": "align", "mamba_block_size": block * ratio, **padding}


SHAPES: dict[str, Shape] = {
    "full": _full,
    "sliding": _sliding,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "llama4": _llama4,
    "chunked": _chunked,
    "jamba": _jamba,
    "jamba-none": _jamba_none,
    "mamba": _mamba,
    "mla": _mla,
    "mla-mixed": _mla_mixed,
    "mla-mamba": _mla_mamba,
    "full-sliding-mamba": _full_sliding_mamba,
    "two-windows": _two_windows,
    "full-chunked-sliding": _full_chunked_sliding,
    "unequal-heads": _unequal_heads,
    "unequal-types": _unequal_types,
    "two-states": _two_states,
    "uniform-type": _uniform_type,
    "hybrid-off": _hybrid_off,
}


class Sort(NamedTuple):
    """Layers that are alike."""

    kind: str
    block: int
    page: int  # bytes, before the pages of all sorts are made equal
    reach: int  # window or chunk, 0 where everything is kept
    state: str  # Mamba only: the shapes

    def blocks(self, length: int, in_flight: int, state_blocks: int) -> int:
        """Blocks that a request of this length can ever hold in one group."""
        if self.kind == "mamba":
            return state_blocks
        if self.kind == "sliding":
            return -(-min(self.reach - 1 + in_flight, length) // self.block) + 1
        if self.kind == "chunked":
            return -(-min(self.reach + in_flight, length) // self.block)
        return -(-length // self.block)


_DTYPE_BYTES = {"fp8_e4m3": 1, "bfloat16": 2, "float16": 2, "float32": 4}


def _page_bytes(layer: Layer, made: Scenario) -> int:
    if layer["kind"] == "mamba":
        sizes = zip(layer["shapes"], layer["dtypes"], strict=True)
        state = sum(shape[0] * shape[1] * _DTYPE_BYTES[dtype] for shape, dtype in sizes)
        return int(made.get("mamba_page_size_padded", state))
    per_token = layer["head_size"] * (1 if layer["kind"] == "mla" else 2 * layer["kv_heads"])
    return int(made["block_size"] * per_token * _DTYPE_BYTES[made.get("dtype", "bfloat16")])


def _sorts(made: Scenario) -> dict[Sort, int]:
    """How many layers there are of each sort, as given."""
    layers = made["layers"] * made.get("pattern_repeat", 1)
    promote = not made.get("hybrid", True) and any(layer["kind"] == "full" for layer in layers)
    sorts: dict[Sort, int] = {}
    for layer in layers:
        kind = "full" if promote else layer["kind"]
        reach = 0 if promote else layer.get("window", layer.get("chunk", 0))
        sort = Sort(kind, made["block_size"], _page_bytes(layer, made), reach, str(layer.get("shapes", "")))
        sorts[sort] = sorts.get(sort, 0) + layer.get("count", 1)
    return sorts


def groups_of(made: Scenario) -> tuple[dict[Sort, int], int]:
    """The number of groups of each sort once pages are equal, and the bytes of one block in all layers of a group."""
    sorts = _sorts(made)
    largest = max(sort.page for sort in sorts)
    kept_in_full = any(sort.kind == "mla" and largest % sort.page for sort in sorts)
    if kept_in_full or len({("full" if s.kind == "mla" else s.kind, s.reach, s.state) for s in sorts}) == 1:
        full = Sort("full", made["block_size"], largest, 0, "")
        return {full if kept_in_full else next(iter(sorts)): 1}, sum(s.page * layers for s, layers in sorts.items())
    fewest, most = min(sorts.values()), max(sorts.values())
    size = most if most < 1.5 * fewest else fewest
    groups = {}
    for sort, layers in sorts.items():
        ratio = largest // sort.page if sort.kind != "mamba" and largest % sort.page == 0 else 1
        groups[sort._replace(block=sort.block * ratio)] = -(-layers // size)
    return groups, size * largest


def blocks_for_longest(made: Scenario) -> int:
    """Blocks that a request of `max_model_len` tokens can ever hold: a smaller pool is refused."""
    batches = 2 if made.get("async_scheduling") else 1
    state_blocks = 2 if made.get("mamba_cache_mode") == "align" else 1
    limits = made["max_model_len"], batches * made["max_num_batched_tokens"], state_blocks
    return sum(sort.blocks(*limits) * groups for sort, groups in groups_of(made)[0].items())
