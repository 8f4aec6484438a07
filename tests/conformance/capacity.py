"""Compare the pools of catalogue models under random flags with those of the reference's own planner.

    python -m tests.conformance.capacity --oracle-python PYTHON --oracle ORACLE [--count N] [--seed S]

The reference is told the layers of one rank, in blocks that hold the states; it groups them, makes
pages equal, counts blocks and tokens, or refuses. All figures must be the same.
"""

import argparse
import random
import re
import sys
from pathlib import Path
from typing import Any

from kvcache.errors import PoolTooSmallError
from kvcache.specs import KVCacheSpec
from models_configs import list_models
from simulator import Scenario
from simulator.capacity import Capacity
from simulator.server import Server, plan_server
from tests.conformance.fuzz import Oracle
from tests.conformance.replay import SPEC_NAMES

GIB = 1 << 30
ORACLE_DTYPES = {"bfloat16", "float16", "float32", "fp8_e4m3"}


def random_settings(rng: random.Random) -> dict[str, Any]:
    """A model and flags that change its memory."""
    model = rng.choice(list_models())
    ranks = [count for count in (1, 2, 4, 8) if model.can_split(count)]
    return {
        "model": model.name,
        "tensor_parallel_size": rng.choice(ranks),
        "kv_cache_memory_bytes": int(rng.uniform(1, 60) * GIB),
        "max_model_len": min(model.max_model_len, rng.choice([2048, 8192, 32_768, 131_072])),
        "max_num_batched_tokens": rng.choice([2048, 4096, 8192, 16_384]),
        "max_num_seqs": rng.choice([1, 16, 256]),
        "kv_cache_dtype": rng.choice(["auto", "auto", "fp8_e4m3"]),
        "block_size": rng.choice([None, None, 16, 32, 64]),
        "mamba_ssm_cache_dtype": rng.choice(["auto", "float32"]),
        "enable_prefix_caching": rng.choice([None, True, False]),
        "disable_hybrid_kv_cache_manager": rng.random() < 0.2,
        "async_scheduling": rng.random() < 0.7,
    }


def layer_of(spec: KVCacheSpec) -> dict[str, Any]:
    """One layer as the reference's scenarios describe it."""
    fields: dict[str, Any] = {"kind": spec.kind}
    if spec.kind == "mamba":
        return {**fields, "shapes": [list(shape) for shape in spec.shapes], "dtypes": list(spec.dtypes)}
    fields["head_size"] = spec.head_size
    if spec.kind != "mla":
        fields["kv_heads"] = spec.num_kv_heads
    if spec.kind in ("sliding", "chunked"):
        reach = "window" if spec.kind == "sliding" else "chunk"
        fields[reach] = getattr(spec, reach)
    return fields


def scenario_of(server: Server) -> dict[str, Any] | None:
    """The server as a scenario of the reference; None where that cannot be said in its format."""
    attention = [spec for spec in server.specs if spec.kind != "mamba"]
    states = [spec for spec in server.specs if spec.kind == "mamba"]
    dtypes = {spec.dtype for spec in attention}
    odd_values = any(getattr(spec, "head_size_v", None) not in (None, 0) for spec in attention)
    if len(dtypes) > 1 or dtypes - ORACLE_DTYPES or odd_values:
        return None
    limits = server.limits
    scenario = {
        "layers": [layer_of(spec) for spec in server.specs],
        "dtype": next(iter(dtypes), "bfloat16"),
        "block_size": server.block_size,
        "kv_memory_bytes": server.stages[0].budget_bytes,
        "max_model_len": limits.max_model_len,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_num_seqs": limits.max_num_seqs,
        "prefix_caching": server.enable_prefix_caching,
        "hybrid": not server.scenario.disable_hybrid_kv_cache_manager,
        "async_scheduling": server.scenario.async_scheduling,
        "requests": [],
    }
    if states:
        scenario["mamba_cache_mode"] = states[0].cache_mode
        scenario["mamba_block_size"] = states[0].block_size
        scenario["mamba_page_size_padded"] = states[0].padded_page_bytes
    return scenario


def figures(server: Server) -> dict[str, Any]:
    """What the reference prints of a pool, or the sizes in its refusal."""
    try:
        capacity = Capacity.of(server)
    except PoolTooSmallError as error:
        return {"refused": _sizes(str(error), r"about ([\d,]+) tokens")}
    layout = capacity.layout
    return {
        "num_blocks": layout.num_blocks,
        "groups": [[SPEC_NAMES[group.spec.kind], len(group.layers), group.spec.block_size] for group in layout.groups],
        "pool_bytes": layout.pool_bytes,
        "kv_cache_tokens": layout.kv_cache_tokens,
        "max_concurrency": round(layout.max_concurrency, 6),
    }


def reference_figures(answer: dict[str, Any]) -> dict[str, Any]:
    """The same from an answer of the reference."""
    if "refused" in answer:
        return {"refused": _sizes(answer["refused"], r"maximum model length is (\d+)")}
    printed = answer["summary"]["capacity"]
    return {
        "num_blocks": printed["num_blocks"],
        "groups": [[group["kind"], group["layers"], group["block_size"]] for group in printed["groups"]],
        "pool_bytes": printed["pool_bytes"],
        "kv_cache_tokens": printed["kv_cache_tokens"],
        "max_concurrency": round(printed["max_concurrency"], 6),
    }


def _sizes(refusal: str, length: str) -> list[float]:
    """The sizes in GiB that a refusal names, and the length that would fit."""
    lengths = [number.replace(",", "") for number in re.findall(length, refusal)]
    return [float(number) for number in (*re.findall(r"([\d.]+) GiB", refusal), *lengths)]


def main() -> int:
    """The command line; the exit code is 1 if a pool differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.capacity", description=__doc__.splitlines()[0])
    parser.add_argument("--oracle-python", type=Path, required=True)
    parser.add_argument("--oracle", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    oracle = Oracle(arguments.oracle_python, arguments.oracle)
    num_same = num_refused = num_unsaid = num_different = 0
    while num_same + num_different < arguments.count:
        settings = random_settings(rng)
        try:
            server = plan_server(Scenario(**settings))
        except ValueError:
            num_unsaid += 1
            continue
        scenario = scenario_of(server)
        if scenario is None:
            num_unsaid += 1
            continue
        ours, theirs = figures(server), reference_figures(oracle.ask(scenario))
        num_same += ours == theirs
        num_refused += ours == theirs and "refused" in ours
        if ours != theirs:
            num_different += 1
            print(f"{settings}\n  ours      {ours}\n  reference {theirs}")
    oracle.close()
    print(f"{num_same} pools equal ({num_refused} of them refused), {num_different} different, {num_unsaid} not asked")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
