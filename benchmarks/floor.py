"""What the block operations of a schedule would cost a bare pool: the floor under any allocator.

python -m benchmarks.floor SCENARIO.json

Counts how many blocks a replay takes and gives back, in calls of which size, then makes the same calls to a pool
that is a list and nothing else: no keys, no order of eviction, no tables. Pure Python only: compiled methods cannot
be counted.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcache.block_pool import BlockPool
from tests.conformance.replay import replay

__all__ = ["floor_of"]

Calls = list[tuple[bool, int]]
"""(whether blocks are taken, how many)."""


def calls_of(scenario: dict[str, Any]) -> Calls:
    """The calls of one replay that take blocks or give them back, in order."""
    calls: Calls = []

    def counted(method: Callable[..., Any], takes: bool, nth: int) -> Callable[..., Any]:
        def count(pool: BlockPool, *arguments: Any) -> Any:
            calls.append((takes, arguments[0] if takes else len(arguments[nth])))
            return method(pool, *arguments)

        return count

    originals = {name: getattr(BlockPool, name) for name in ("take", "put_hashed", "put_unhashed")}
    try:
        for name, method in originals.items():
            setattr(BlockPool, name, counted(method, name == "take", nth=int(name == "put_hashed")))
        replay(scenario, None)
    finally:
        for name, method in originals.items():
            setattr(BlockPool, name, method)
    return calls


def bare_seconds(calls: Calls) -> float:
    """The same calls to a list."""
    free, held = list(range(1 << 20)), [0] * (1 << 20)
    started = time.perf_counter()
    for takes, num_blocks in calls:
        if takes:
            held += free[-num_blocks:]
            del free[-num_blocks:]
        else:
            free += held[-num_blocks:]
            del held[-num_blocks:]
    return time.perf_counter() - started


def floor_of(path: Path) -> dict[str, float]:
    """Blocks that are taken and given back, calls, and seconds of a bare pool."""
    calls = [call for call in calls_of(json.loads(path.read_text())) if call[1]]
    return {
        "blocks": sum(num_blocks for _, num_blocks in calls),
        "calls": len(calls),
        "bare_s": min(bare_seconds(calls) for _ in range(3)),
    }


if __name__ == "__main__":
    print(json.dumps(floor_of(Path(sys.argv[1]))))
