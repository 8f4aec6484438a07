"""Scenarios for the conformance tests: a kind and a seed give the same small scenario everywhere.

Read `scenario` first. A scenario is the reference's own format: a model's layers, a pool, the
scheduler's settings and the requests with the step at which each arrives. The pieces are drawn in
that order: a *shape* (`scenarios/shapes.py`), the traffic (`scenarios/traffic.py`), then settings, and
last a pool that the longest request just fits, or fits a few times.
"""

from collections.abc import Callable
from math import lcm
from random import Random
from typing import Any

from tests.conformance.scenarios.shapes import (
    SHAPES,
    Scenario,
    Shape,
    attention,
    blocks_for_longest,
    groups_of,
    mamba_layer,
    mamba_partial,
    odd_chunk,
)
from tests.conformance.scenarios.traffic import make_requests, output_length, prompt_length

__all__ = ["ASYNC_KINDS", "CONNECTED_KINDS", "EXTRA_KINDS", "KINDS", "scenario"]

BLOCK_SIZES = (4, 8, 16, 16, 16, 32)


def scenario(kind: str, seed: int) -> Scenario:
    """The scenario of that kind and seed."""
    synchronous = kind.removeprefix("async-")
    if synchronous not in _MAKERS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS + ASYNC_KINDS + EXTRA_KINDS)}")
    rng = Random(f"{kind}/{seed}")
    made = _MAKERS[synchronous](rng, kind.startswith("async-"))
    return dict(sorted(made.items()))


def _pool(rng: Random, made: Scenario, tightness: str) -> Scenario:
    """A pool for one longest request and the null block, and more unless it should be tight."""
    least = blocks_for_longest(made) + 1
    if made.get("async_scheduling") and made.get("mamba_cache_mode") == "align":
        # Two steps in flight hold three states, one more than the start-up check counts: with less, vLLM never ends.
        least += sum(groups for sort, groups in groups_of(made)[0].items() if sort.kind == "mamba")
    if tightness == "tight":
        blocks = least + rng.choice((0, 0, 1, 2, 5))
    else:
        blocks = round(least * (rng.uniform(1.1, 1.9) if tightness == "snug" else rng.uniform(2, 6)))
    if rng.random() < 0.1:
        block_bytes = groups_of(made)[1]
        return {"kv_memory_bytes": blocks * block_bytes + rng.randrange(block_bytes)}
    return {"num_blocks": blocks}


def _limits(rng: Random, block: int, requests: list[dict[str, Any]]) -> Scenario:
    """Sequences, token budget and length limit; few requests are cut short by the limit."""
    num_seqs = rng.choice((2, 3, 4, 6, 6, 8, 8, 16, 16))
    budget = rng.choice((block, 2 * block, 3 * block + 1, 64, 100, 128, 256, 512))
    longest = max(prompt_length(r) + output_length(r) for r in requests)
    if rng.random() < 0.08:
        limit = max(max(prompt_length(r) for r in requests) + 1, longest - rng.randint(1, 20))
    else:
        spare = (0, 0, 1, 1, 7, block, longest // 4, longest, max(0, rng.choice((1024, 2048, 4096)) - longest))
        limit = longest + rng.choice(spare)
    return {
        "max_num_seqs": num_seqs,
        "max_num_batched_tokens": max(budget, num_seqs),
        "max_model_len": limit,
    }


def _compose(
    rng: Random, is_async: bool, shape: Shape, tightness: str | None = None, by_hash_ids: bool = False
) -> Scenario:
    """A scenario of that shape; the pool comes last, for its size is a matter of all the rest."""
    block = rng.choice(BLOCK_SIZES)
    made: Scenario = {"block_size": block, **shape(rng, block)}
    made["requests"] = make_requests(rng, block, by_hash_ids)
    made |= _limits(rng, block, made["requests"])
    if made.get("mamba_cache_mode") == "none":
        made["mamba_block_size"] = made["max_model_len"]  # one block for all of a request's tokens
        if all(layer["kind"] == "mamba" for layer in made["layers"]):
            made["block_size"] = made["max_model_len"]
    if "mamba_cache_mode" not in made and rng.random() < 0.15:
        made["dtype"] = rng.choice(("float16", "float32", "fp8_e4m3"))
    if is_async:
        made["async_scheduling"] = True
    tightness = tightness or rng.choice(("tight", "tight", "tight", "snug", "snug", "ample"))
    return made | _pool(rng, made, tightness)


def _sprinkle(rng: Random, made: Scenario) -> Scenario:
    """Now and then a setting away from its default, whatever the kind."""
    if rng.random() < 0.15:
        _with_priority(rng, made)
    if rng.random() < 0.12:
        made["watermark"] = rng.choice((0.01, 0.05, 0.1))
    if rng.random() < 0.12:
        _with_threshold(rng, made)
    if rng.random() < 0.12:
        made["reserve_full_prompt"] = False
    if rng.random() < 0.35 and any(sort.kind in ("sliding", "mamba") for sort in groups_of(made)[0]):
        _with_retention(rng, made)
    return made


def _with_retention(rng: Random, made: Scenario) -> Scenario:
    """An interval of whole scheduler blocks, a few or many; or none at all (dense)."""
    if made.get("mamba_cache_mode") == "none":
        return made
    base = lcm(*(sort.block for sort in groups_of(made)[0]))
    made["retention_interval"] = rng.choice((0, None, None, base, 2 * base, 4 * base, max(base, 256 // base * base)))
    return made


def _with_priority(rng: Random, made: Scenario) -> Scenario:
    made["policy"] = "priority"
    levels = rng.choice((2, 3, 10))
    for request in made["requests"]:
        request["priority"] = rng.randrange(levels)
    return made


def _with_threshold(rng: Random, made: Scenario) -> Scenario:
    made["long_prefill_token_threshold"] = min(
        made["max_model_len"], rng.choice((made["block_size"], 20, 33, 64, made["block_size"] + 1))
    )
    return made


def _with_remote(rng: Random, made: Scenario) -> Scenario:
    """Beginnings of most prompts come from elsewhere, some steps later: as a prefill server hands them over, mostly."""
    keeps_states = any(sort.kind == "mamba" for sort in groups_of(made)[0])
    base = lcm(*(sort.block for sort in groups_of(made)[0]))
    for request in made["requests"]:
        tokens = prompt_length(request) - keeps_states
        if rng.random() < 0.3:  # as a store of whole blocks would have them
            tokens = rng.randint(0, prompt_length(request) // base) * base
        if tokens and rng.random() < 0.7:
            request["remote"] = {"tokens": tokens, "steps": rng.choice((0, 0, 1, 1, 2, 3, 5, 9, 20))}
    return made


def _with_loans(rng: Random, made: Scenario) -> Scenario:
    """Requests go on elsewhere, as a prefill server's do: their blocks are read some steps after their end."""
    for request in made["requests"]:
        request["lent"] = rng.choice((0, 0, 1, 2, 5, 20))
        if rng.random() < 0.7:
            request["output"] = 1
    return made


def _any_shape(rng: Random) -> Shape:
    return SHAPES[rng.choice(tuple(SHAPES))]


def _retaining_shape(rng: Random) -> Shape:
    names = ("sliding", "gemma3", "gpt-oss", "jamba", "mla-mamba", "full-sliding-mamba", "two-windows", "unequal-heads")
    return SHAPES[rng.choice(names)]


Maker = Callable[[Random, bool], Scenario]


def _of_shape(name: str) -> Maker:
    return lambda rng, is_async: _sprinkle(rng, _compose(rng, is_async, SHAPES[name]))


def _no_caching(rng: Random, is_async: bool) -> Scenario:
    return _sprinkle(rng, _compose(rng, is_async, _any_shape(rng)) | {"prefix_caching": False})


def _retention_kind(rng: Random, is_async: bool) -> Scenario:
    return _with_retention(rng, _compose(rng, is_async, _retaining_shape(rng)))


def _priority(rng: Random, is_async: bool) -> Scenario:
    return _with_priority(rng, _compose(rng, is_async, _any_shape(rng), "tight"))


def _watermark(rng: Random, is_async: bool) -> Scenario:
    made = _compose(rng, is_async, _any_shape(rng), rng.choice(("tight", "snug")))
    return made | {"watermark": rng.choice((0.01, 0.05, 0.1, 0.3, 0.6))}


def _long_prefill(rng: Random, is_async: bool) -> Scenario:
    return _with_threshold(rng, _compose(rng, is_async, _any_shape(rng)))


def _tight(rng: Random, is_async: bool) -> Scenario:
    return _compose(rng, is_async, _any_shape(rng), "tight")


def _no_reservation(rng: Random, is_async: bool) -> Scenario:
    return _compose(rng, is_async, _any_shape(rng), "tight") | {"reserve_full_prompt": False}


def _hash_ids(rng: Random, is_async: bool) -> Scenario:
    return _sprinkle(rng, _compose(rng, is_async, _any_shape(rng), by_hash_ids=True))


def _remote(*shapes: str) -> Maker:
    return lambda rng, is_async: _with_remote(rng, _sprinkle(rng, _compose(rng, is_async, SHAPES[rng.choice(shapes)])))


def _remote_tight(rng: Random, is_async: bool) -> Scenario:
    return _with_remote(rng, _sprinkle(rng, _tight(rng, is_async)))


def _lent(rng: Random, is_async: bool) -> Scenario:
    return _with_loans(rng, _sprinkle(rng, _tight(rng, is_async)))


def _plain(shape: Shape) -> Maker:
    return lambda rng, is_async: _compose(rng, is_async, shape)


# ---------------------------------------------------------------- scenarios that no server starts with


def _pool_too_small(rng: Random, is_async: bool) -> Scenario:
    made = _compose(rng, is_async, _any_shape(rng), "tight")
    made.pop("kv_memory_bytes", None)
    return made | {"num_blocks": max(1, blocks_for_longest(made) - rng.choice((0, 0, 1, 3)))}


def _memory_too_small(rng: Random, is_async: bool) -> Scenario:
    made = _compose(rng, is_async, _any_shape(rng), "tight")
    made.pop("num_blocks", None)
    return made | {"kv_memory_bytes": (blocks_for_longest(made) + 1) * groups_of(made)[1] - rng.choice((1, 1000))}


def _retention_off_grid(rng: Random, is_async: bool) -> Scenario:
    made = _compose(rng, is_async, _retaining_shape(rng))
    block = made["block_size"]
    return made | {"retention_interval": block * rng.randint(0, 4) + rng.randint(1, block - 1)}


def _retention_without_use(rng: Random, is_async: bool) -> Scenario:
    made = _compose(rng, is_async, rng.choice((SHAPES["full"], SHAPES["mla"], SHAPES["llama4"])))
    return made | {"retention_interval": made["block_size"] * rng.randint(1, 8)}


def _two_windows_hybrid_off(rng: Random, is_async: bool) -> Scenario:
    layers = [attention("sliding", 1, window=32), attention("sliding", 2, window=48)]
    if rng.random() < 0.5:
        layers.append(attention("full", 1))
    return _compose(rng, is_async, lambda _rng, _block: {"layers": layers}, "ample") | {"hybrid": False}


def _hybrid_off_without_full(rng: Random, is_async: bool) -> Scenario:
    layers = [attention("sliding", 1, window=32), attention("chunked", 2, chunk=64)]
    return _compose(rng, is_async, lambda _rng, _block: {"layers": layers}, "ample") | {"hybrid": False}


def _mamba_hybrid_off(rng: Random, is_async: bool) -> Scenario:
    shape = rng.choice((SHAPES["jamba"], SHAPES["jamba-none"], SHAPES["mla-mamba"], SHAPES["full-sliding-mamba"]))
    return _compose(rng, is_async, shape, "ample") | {"hybrid": False}


def _mla_page_not_divisible(rng: Random, is_async: bool) -> Scenario:
    def shape(rng: Random, block: int) -> Scenario:
        layers = [mamba_layer(rng, 2, block * 600), {"kind": "mla", "count": 1, "head_size": 192}]
        return {"layers": layers, "mamba_cache_mode": "align", "mamba_page_size_padded": block * 600}

    return _compose(rng, is_async, shape, "ample")


_REFUSED: tuple[Maker, ...] = (
    _pool_too_small,
    _memory_too_small,
    _retention_off_grid,
    _retention_without_use,
    _two_windows_hybrid_off,
    _hybrid_off_without_full,
    _mamba_hybrid_off,
    _mla_page_not_divisible,
)


def _refused(rng: Random, is_async: bool) -> Scenario:
    return rng.choice(_REFUSED)(rng, is_async)


_MAKERS: dict[str, Maker] = {
    **{name: _of_shape(name) for name in SHAPES},
    "no-caching": _no_caching,
    "retention": _retention_kind,
    "priority": _priority,
    "watermark": _watermark,
    "long-prefill": _long_prefill,
    "tight": _tight,
    "no-reservation": _no_reservation,
    "hash-ids": _hash_ids,
    "remote-full": _remote("full", "mla", "uniform-type"),
    "remote-windows": _remote("sliding", "gemma3", "gpt-oss", "two-windows"),
    "remote-chunks": _remote("llama4", "chunked", "full-chunked-sliding"),
    "remote-states": _remote("jamba", "jamba-none", "mamba", "full-sliding-mamba", "two-states"),
    "remote-tight": _remote_tight,
    "lent": _lent,
    "refused": _refused,
    "mamba-partial": _plain(mamba_partial),
    "odd-chunk": _plain(odd_chunk),
}

_NO_SERVERS = ("mamba-partial", "odd-chunk")  # vLLM schedules these too, but no server sets its blocks so

KINDS = tuple(kind for kind in _MAKERS if kind not in _NO_SERVERS)
ASYNC_KINDS = tuple(f"async-{kind}" for kind in KINDS)
CONNECTED_KINDS = ("remote-full", "remote-windows", "remote-chunks", "remote-states", "remote-tight", "lent")
"""Tokens come from elsewhere, or are read there: what no other kind does."""
EXTRA_KINDS = (*_NO_SERVERS, *(f"async-{kind}" for kind in _NO_SERVERS))
