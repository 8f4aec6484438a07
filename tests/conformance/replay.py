"""Replay a scenario in the reference's format and print what the reference prints.

    python -m tests.conformance.replay SCENARIO.json            one JSON line per step, then a summary
    python -m tests.conformance.replay --speed SCENARIO.json    the summary alone, with wall seconds

It runs through the same engine as every simulation: steps take one second each, so that the time of a
step is its number, and an observer writes the rows.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvcache.errors import KVCacheError
from kvcache.grouping import group_layers
from kvcache.hashing import PrefixKeys, hash_tokens
from kvcache.layout import KVCacheLayout, plan_layout
from kvcache.manager import CacheSettings, KVCacheManager
from kvcache.specs import ChunkedLocalSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, MLASpec, SlidingWindowSpec
from simulator.batch import Batch
from simulator.engine import run_to_the_end
from simulator.latency import ConstantStepTimes
from simulator.request import Request
from simulator.scheduler import Scheduler, SchedulerSettings
from tests.conformance.remote import Outside

SPEC_NAMES = {
    "full": "FullAttentionSpec",
    "sliding": "SlidingWindowSpec",
    "chunked": "ChunkedLocalAttentionSpec",
    "mla": "MLAAttentionSpec",
    "mamba": "MambaSpec",
}
GENERATED_TOKEN = 7
Row = dict[str, Any]


def layer_specs(scenario: Row) -> list[KVCacheSpec]:
    """One spec per layer, in model order."""
    layers = [layer for layer in scenario["layers"] for _ in range(layer.get("count", 1))]
    return [layer_spec(scenario, layer) for layer in layers * scenario.get("pattern_repeat", 1)]


def layer_spec(scenario: Row, layer: Row) -> KVCacheSpec:
    """What one layer keeps."""
    block_size = scenario.get("block_size", 16)
    attention = {
        "block_size": block_size,
        "num_kv_heads": layer.get("kv_heads", 1),
        "head_size": layer.get("head_size", 1),
        "dtype": scenario.get("dtype", "bfloat16"),
    }
    make: dict[str, Callable[[], KVCacheSpec]] = {
        "full": lambda: FullAttentionSpec(**attention),
        "sliding": lambda: SlidingWindowSpec(**attention, window=layer["window"]),
        "chunked": lambda: ChunkedLocalSpec(**attention, chunk=layer["chunk"]),
        "mla": lambda: MLASpec(**{**attention, "num_kv_heads": 1}),
        "mamba": lambda: MambaSpec(
            block_size=scenario.get("mamba_block_size", block_size),
            shapes=tuple(map(tuple, layer["shapes"])),
            dtypes=tuple(layer["dtypes"]),
            padded_page_bytes=scenario.get("mamba_page_size_padded"),
            cache_mode=scenario.get("mamba_cache_mode", "none"),
        ),
    }
    return make[layer["kind"]]()


def build(scenario: Row, outside: Outside | None = None) -> tuple[KVCacheLayout, Scheduler]:
    """The pool and the scheduler; raises KVCacheError for a scenario that the reference refuses."""
    max_model_len = scenario.get("max_model_len", 131072)
    max_tokens = scenario.get("max_num_batched_tokens", 8192)
    layout = plan_layout(
        group_layers(layer_specs(scenario), hybrid=scenario.get("hybrid", True)),
        kv_cache_bytes=scenario.get("kv_memory_bytes", 1 << 50),
        num_blocks=scenario.get("num_blocks"),
        max_model_len=max_model_len,
        max_in_flight_tokens=max_tokens * (2 if scenario.get("async_scheduling") else 1),
    )
    block_size = scenario.get("block_size", 16)
    cache = CacheSettings(
        block_size=block_size,
        enable_prefix_caching=scenario.get("prefix_caching", True),
        prefix_cache_retention_interval=scenario.get("retention_interval", 0),
        watermark=scenario.get("watermark", 0.0),
    )
    aligned = any(layer["kind"] == "mamba" for layer in scenario["layers"])
    aligned = aligned and scenario.get("mamba_cache_mode", "none") == "align"
    settings = SchedulerSettings(
        max_model_len=max_model_len,
        max_num_seqs=scenario.get("max_num_seqs", 256),
        max_num_batched_tokens=max_tokens,
        long_prefill_token_threshold=scenario.get("long_prefill_token_threshold", 0),
        scheduling_policy=scenario.get("policy", "fcfs"),
        reserve_full_isl=scenario.get("reserve_full_prompt", True),
        async_scheduling=bool(scenario.get("async_scheduling")),
        state_block=block_size if aligned else None,
    )
    manager = KVCacheManager(layout, cache)
    return layout, Scheduler(manager, settings) if outside is None else outside.scheduler(manager, settings)


class ChainedIds:
    """Prefix keys for `hash_ids`, which need not name whole prefixes here: equal ids, equal tokens of one block."""

    def __init__(self, hash_unit: int) -> None:
        self._unit = hash_unit
        self._numbers: dict[tuple[int, object], int] = {}

    def keys(self, scenario_request: Row, output: list[int]) -> list[int]:
        """The keys of all hash units whose tokens another request may share."""
        id_tokens = scenario_request.get("hash_block", 512)
        num_whole = scenario_request["input_length"] // id_tokens
        ids = scenario_request["hash_ids"][:num_whole]
        known = len(ids) * id_tokens
        if known == scenario_request["input_length"]:  # no tail of its own: what is generated may be alike
            known += len(output)
        keys: list[int] = []
        parent = 0
        for start in range(0, known // self._unit * self._unit, self._unit):
            content = tuple(self._content(ids, id_tokens, output, start, start + self._unit))
            parent = self._numbers.setdefault((parent, content), len(self._numbers) + 1)
            keys.append(parent)
        return keys

    @staticmethod
    def _content(ids: list[int], id_tokens: int, output: list[int], start: int, end: int) -> Iterator[object]:
        """What a range of tokens consists of: parts of id blocks, then single generated tokens."""
        named = len(ids) * id_tokens
        while start < min(end, named):
            block_end = min((start // id_tokens + 1) * id_tokens, end)
            yield ids[start // id_tokens], start % id_tokens, block_end % id_tokens, id_tokens
            start = block_end
        yield from output[max(0, start - named) : max(0, end - named)]


def requests_of(scenario: Row, scheduler: Scheduler) -> list[Request]:
    """The scenario's requests in order of arrival, their prompts hashed."""
    chained = ChainedIds(scheduler.manager.hash_unit)
    rows = sorted(scenario["requests"], key=lambda row: row.get("arrive_step", 0))
    return [request_of(serial, row, scheduler, chained) for serial, row in enumerate(rows)]


def request_of(serial: int, row: Row, scheduler: Scheduler, chained: ChainedIds) -> Request:
    """One request; its output ends where the model's length does."""
    manager = scheduler.manager
    output = row["output"] if isinstance(row["output"], list) else [GENERATED_TOKEN] * row["output"]
    if "prompt" in row:
        prompt_tokens = len(row["prompt"])
        shared = hash_tokens([*row["prompt"], *output], manager.hash_unit)
    else:
        prompt_tokens = row["input_length"]
        shared = chained.keys(row, output)
    return Request(
        row["id"],
        float(row.get("arrive_step", 0)),
        manager.new_request(PrefixKeys(shared, serial), prompt_tokens),
        output_tokens=min(len(output), scheduler.settings.max_model_len - prompt_tokens),
        priority=row.get("priority", 0),
    )


class RowWriter:
    """Observes every step and writes one row for each, idle ones too."""

    def __init__(self, emit: Callable[[Row], None] | None) -> None:
        self._emit = emit
        self._pending: deque[Row] = deque()
        self.run_trace: list[tuple[int, int]] = []
        self.in_steps: dict[int, tuple[int, int]] = {}
        """(free blocks, waiting requests) in steps, where somebody looks."""
        self.num_steps = 0
        self.scheduled_tokens = 0
        self.finish_step: dict[str, int] = {}

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Fill the idle time before the step, and remember its row."""
        if self._emit is None:
            self.num_steps = round(start_s)
            return
        row = {
            "scheduled": dict(scheduler.scheduled_tokens()),
            "preempted": sorted(request.request_id for request in scheduler.plan.preempted),
            "free_blocks": scheduler.manager.pool.num_free,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
        }
        while not self._pending and self.num_steps < start_s:
            free_blocks, waiting = self.in_steps.get(self.num_steps, (scheduler.manager.pool.num_blocks - 1, 0))
            idle = {"scheduled": {}, "preempted": [], "running": 0}
            self._write({**idle, "waiting": waiting, "free_blocks": free_blocks})
        self._pending.append(row)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """Write the rows of the steps that ran."""
        self.scheduled_tokens += batch.num_tokens * num_steps
        if self._emit is None:
            self.num_steps += num_steps
        else:
            row = self._pending.popleft()
            self._write(row)
            for free_blocks, running in self._take_trace(num_steps - 1):
                self._write({**row, "free_blocks": free_blocks, "running": running})
        for request in ended:
            self.finish_step[request.request_id] = self.num_steps - 1

    def _take_trace(self, num_steps: int) -> list[tuple[int, int]]:
        """(free blocks, running) after each further step of the batch that is settled."""
        taken, self.run_trace[:num_steps] = self.run_trace[:num_steps], []
        return taken

    def _write(self, row: Row) -> None:
        assert self._emit is not None
        self._emit({"step": self.num_steps, **row})
        self.num_steps += 1


def replay(scenario: Row, emit: Callable[[Row], None] | None) -> Row:
    """Run a scenario to its end; `emit` gets one row per step. Gives back the summary."""
    outside = Outside(scenario)
    layout, scheduler = build(scenario, outside if outside.is_there else None)
    requests = requests_of(scenario, scheduler)
    writer = RowWriter(emit)
    if emit is not None:
        scheduler.run_trace = writer.run_trace
    start = time.perf_counter()
    # A step planned ahead is planned one step earlier, also where nothing runs meanwhile.
    if outside.is_there:
        outside.run(scheduler, requests, writer, writer.in_steps)
    else:
        run_to_the_end(scheduler, ConstantStepTimes(1.0), iter(requests), writer, planning_s=1.0)
    seconds = max(time.perf_counter() - start, 1e-9)
    return {
        "capacity": capacity(layout),
        "steps": writer.num_steps,
        "scheduled_tokens": writer.scheduled_tokens,
        "seconds": round(seconds, 3),
        "requests_per_second": round(len(requests) / seconds, 1),
        "steps_per_second": round(writer.num_steps / seconds, 1),
        "requests": {request.request_id: outcome(request, scheduler, writer) for request in requests},
    }


def outcome(request: Request, scheduler: Scheduler, writer: RowWriter) -> Row:
    """What the summary says of one request. A token that comes at time t was computed by the step before.

    Asynchronously, that step was planned one earlier.
    """
    assert request.first_token_s is not None
    return {
        "cached_tokens": min(request.cached_tokens + request.loaded_tokens, request.prompt_tokens - 1),
        "first_token_step": round(request.first_token_s) - 1 - scheduler.settings.async_scheduling,
        "finish_step": writer.finish_step[request.request_id],
        "preemptions": request.num_preemptions,
    }


def capacity(layout: KVCacheLayout) -> Row:
    """The pool as the reference describes it."""
    return {
        "num_blocks": layout.num_blocks,
        "groups": [
            {
                "kind": SPEC_NAMES[group.spec.kind],
                "layers": len(group.layers),
                "block_size": group.spec.block_size,
                "page_size_bytes": group.spec.page_bytes,
            }
            for group in layout.groups
        ],
        "pool_bytes": layout.pool_bytes,
        "kv_cache_tokens": layout.kv_cache_tokens,
        "max_concurrency": layout.max_concurrency,
    }


def replay_rows(scenario: Row) -> tuple[list[Row], Row]:
    """(one row per step, the summary without wall-clock figures) of a scenario."""
    rows: list[Row] = []
    summary = replay(scenario, rows.append)
    for wall_clock in ("seconds", "requests_per_second", "steps_per_second"):
        del summary[wall_clock]
    return rows, summary


def main(arguments: list[str]) -> int:
    """The command line."""
    speed = "--speed" in arguments
    (path,) = [argument for argument in arguments if argument != "--speed"]
    scenario = json.loads(Path(path).read_text())
    try:
        summary = replay(scenario, None if speed else lambda row: print(json.dumps(row)))
    except KVCacheError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    if speed:
        del summary["requests"]
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
