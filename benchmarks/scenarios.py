"""The loads that are timed, in the conformance format, so that vLLM's own scheduler can replay them too."""

import json
import random
from pathlib import Path
from typing import Any

__all__ = ["SHAPES", "mooncake_on_gemma3_27b", "shared_documents"]

Scenario = dict[str, Any]

GIB = 1 << 30
ID_TOKENS = 512


def attention(kind: str, kv_heads: int, count: int = 1, **more: int) -> Scenario:
    """`count` equal attention layers with heads of 128."""
    return {"kind": kind, "count": count, "kv_heads": kv_heads, "head_size": 128, **more}


def gemma3_layers(kv_heads: int, repeats: int, rest: int) -> list[Scenario]:
    """Five sliding-window layers, then a full one, over and over; `rest` sliding ones behind."""
    sliding = {"kv_heads": kv_heads, "window": 1024}
    pattern = [attention("sliding", count=5, **sliding), attention("full", kv_heads)]
    return pattern * repeats + ([attention("sliding", count=rest, **sliding)] if rest else [])


def jamba_layers() -> list[Scenario]:
    """32 layers of Jamba's shape: every eighth attends, the others keep a state."""
    state = {"kind": "mamba", "shapes": [[3, 8192], [8192, 16]], "dtypes": ["bfloat16", "bfloat16"]}
    return [attention("full", 8) if layer % 8 == 4 else state for layer in range(32)]


SHAPES: dict[str, Scenario] = {
    "gemma-3": {"layers": gemma3_layers(4, 8, 0), "num_blocks": 40_000},
    "full attention": {"layers": [attention("full", 8, count=32)], "num_blocks": 16_000},
    "jamba align": {
        "layers": jamba_layers(),
        "num_blocks": 8_000,
        "block_size": 80,
        "mamba_cache_mode": "align",
        "mamba_block_size": 80,
        "mamba_page_size_padded": 327_680,
    },
}
"""Layers and pool of the shapes that serve shared documents."""


def shared_documents(shape: str, num_requests: int = 1000, seed: int = 0) -> Scenario:
    """Questions about 20 documents of 1,024 or 2,048 tokens, 64 running at most."""
    rng = random.Random(seed)
    requests = []
    for number in range(num_requests):
        document, num_ids = rng.randrange(20), rng.choice((2, 4))
        question = rng.randint(50, 500)
        requests.append(
            {
                "id": f"r{number}",
                "arrive_step": number * 4,
                "input_length": num_ids * ID_TOKENS + question,
                "hash_ids": [*(document * 10 + nth for nth in range(num_ids)), 10**6 + number],
                "hash_block": ID_TOKENS,
                "output": rng.randint(100, 400),
            }
        )
    limits = {"block_size": 16, "max_model_len": 8192, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    return {**limits, **SHAPES[shape], "requests": requests}


def mooncake_on_gemma3_27b(trace: Path, num_requests: int = 2000) -> Scenario:
    """The first requests of the Mooncake conversation trace on gemma-3-27b under tensor parallel 2, pool 40 GiB.

    Arrival steps are tenths of a second.
    """
    requests = []
    with trace.open() as lines:
        for number, line in zip(range(num_requests), lines, strict=False):
            row = json.loads(line)
            requests.append(
                {
                    "id": f"r{number}",
                    "arrive_step": row["timestamp"] // 100,
                    "input_length": row["input_length"],
                    "hash_ids": row["hash_ids"],
                    "hash_block": ID_TOKENS,
                    "output": row["output_length"],
                }
            )
    return {
        "layers": gemma3_layers(8, 10, 2),
        "kv_memory_bytes": 40 * GIB,
        "max_model_len": 131_072,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "requests": requests,
    }
