"""Results as a run leaves them, made up quickly: a busy hour, and a few rows to compute by hand."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from simulator.metrics import summarize
from simulator.pool_bytes import BYTE_COLUMNS
from simulator.result import Result

GIB = 1 << 30

SCENARIO = {
    "model": "gemma-3-27b",
    "gpu": "h100-80gb",
    "tensor_parallel_size": 2,
    "trace": "conversations.jsonl",
    "scheduler": {"max_num_seqs": 48, "max_num_batched_tokens": 8192, "scheduling_policy": "fcfs"},
    "enable_prefix_caching": True,
    "long_prefill_token_threshold": None,
    "seed": 0,
}


def make_capacity(num_blocks: int = 9001) -> dict[str, Any]:
    """Gemma-3-27b's groups on two ranks."""
    page_bytes = 16 * 8192
    bytes_per_block = 10 * page_bytes
    groups = [{"kind": "full", "layers": 10, "padding_layers": 0, "block_size": 16, "page_bytes": page_bytes}]
    for layers in (10, 10, 8, 8, 8, 8):
        groups.append({**groups[0], "kind": "sliding_window", "layers": layers, "padding_layers": 10 - layers})
    return {
        "num_blocks": num_blocks,
        "bytes_per_block": bytes_per_block,
        "pool_bytes": num_blocks * bytes_per_block,
        "remainder_bytes": 312_320,
        "kv_budget_bytes": num_blocks * bytes_per_block + 312_320,
        "kv_cache_tokens": 81_920,
        "max_concurrency": 2.5,
        "weight_bytes": 27 * GIB,
        "groups": groups,
    }


def make_requests(**columns: Any) -> pd.DataFrame:
    """One row per value; what is not given is as for a request of 10 tokens that finished without trouble."""
    num_requests = max(len(values) for values in columns.values())
    arrival_s = np.asarray(columns.get("arrival_s", np.zeros(num_requests)), dtype=float)
    table = {
        "request_id": [f"r{index}" for index in range(num_requests)],
        "arrival_s": arrival_s,
        "first_scheduled_s": arrival_s,
        "first_token_s": arrival_s + 1.0,
        "finish_s": arrival_s + 2.0,
        "prompt_tokens": 10,
        "output_tokens": 2,
        "cached_tokens": 0,
        "num_preemptions": 0,
        "priority": 0,
        "session": None,
        "status": "finished",
        "reason": None,
    }
    return pd.DataFrame({**table, **columns})


def make_steps(**columns: Any) -> pd.DataFrame:
    """One row per value; what is not given is 0, or not sampled."""
    num_rows = max(len(values) for values in columns.values())
    counts = ["prefill_tokens", "num_prefills", "num_decodes", "running", "waiting"]
    counts += ["num_preempted", "held_blocks", "cached_blocks", "evictions"]
    not_given = 0.0 if "free_bytes" in columns else np.nan
    table: dict[str, Any] = {"step": np.arange(num_rows), "num_steps": 1}
    table |= {"start_s": np.arange(num_rows) * 1.0, "end_s": np.arange(num_rows) + 1.0}
    table |= dict.fromkeys(counts, 0) | {"free_blocks": 100} | dict.fromkeys(BYTE_COLUMNS, not_given)
    return pd.DataFrame({**table, **columns})


def make_gaps(*gaps: tuple[float, int]) -> pd.DataFrame:
    """(seconds, count) each."""
    return pd.DataFrame({"gap_s": [gap for gap, _ in gaps], "count": [count for _, count in gaps]}, dtype=float)


def make_result(
    requests: pd.DataFrame, steps: pd.DataFrame, gaps: pd.DataFrame | None = None, num_blocks: int = 101
) -> Result:
    """A result of these tables, summary included."""
    gaps = make_gaps() if gaps is None else gaps
    capacity = make_capacity(num_blocks)
    summary = summarize(requests, steps, gaps, capacity)
    tables = {"requests": requests, "steps": steps, "token_gaps": gaps}
    return Result(scenario=SCENARIO, capacity=capacity, tables=tables, summary=summary)


@cache
def busy_hour(num_requests: int = 3000, num_rows: int = 6000, seed: int = 0) -> Result:
    """An hour with a rush in its middle: a queue builds up, the pool runs full, requests are preempted."""
    rng = np.random.default_rng(seed)
    capacity = make_capacity()
    steps = _busy_steps(rng, num_rows, capacity)
    span_s = float(steps["end_s"].iloc[-1])
    arrival_s = np.sort(rng.beta(2.0, 2.5, num_requests)) * 0.97 * span_s
    waiting = np.interp(arrival_s, steps["end_s"], steps["waiting"])
    scheduled_s = arrival_s + rng.exponential(0.02, num_requests) + 0.4 * waiting
    prompt = rng.lognormal(7.0, 1.0, num_requests).astype(int) + 1
    output = rng.lognormal(5.0, 0.9, num_requests).astype(int) + 1
    first_s = scheduled_s + 0.05 + prompt / 9000
    finish_s = first_s + (output - 1) * rng.lognormal(-3.5, 0.25, num_requests)
    requests = make_requests(
        arrival_s=arrival_s, first_scheduled_s=scheduled_s, first_token_s=first_s, finish_s=finish_s,
        prompt_tokens=prompt, output_tokens=output,
        cached_tokens=(prompt * rng.beta(1.0, 1.5, num_requests)).astype(int),
        num_preemptions=rng.poisson(0.02 * (waiting > 5)),
    )  # fmt: skip
    too_long = rng.choice(num_requests, 7, replace=False)
    times = ["first_scheduled_s", "first_token_s", "finish_s"]
    requests.loc[too_long, times] = np.nan
    requests.loc[too_long, ["output_tokens", "cached_tokens", "num_preemptions"]] = 0
    requests.loc[too_long, ["status", "reason"]] = ["rejected", "longer than max_model_len"]
    gaps = make_gaps(*((float(gap), 1) for gap in rng.exponential(3.0, 40)))
    summary = summarize(requests, steps, gaps, capacity)
    tables = {"requests": requests, "steps": steps, "token_gaps": gaps}
    return Result(scenario=SCENARIO, capacity=capacity, tables=tables, summary=summary)


def _busy_steps(rng: np.random.Generator, num_rows: int, capacity: dict[str, Any]) -> pd.DataFrame:
    usable, block_bytes = capacity["num_blocks"] - 1, capacity["bytes_per_block"]
    at = np.linspace(0, 1, num_rows)
    load = 15 + 65 * np.exp(-(((at - 0.45) / 0.16) ** 2)) + np.cumsum(rng.normal(0, 0.25, num_rows))
    running = np.clip(load.round(), 1, 48)
    waiting = np.clip((load - 48).round(), 0, None) + rng.poisson(0.1, num_rows)
    held = np.clip((running * 190 + rng.normal(0, 60, num_rows)).round(), 1, usable)
    cached = np.minimum(usable - held, (np.minimum(1.0, 4 * at) * 0.8 * (usable - held)).round())
    prefills = rng.poisson(0.3, num_rows)
    num_steps = rng.integers(1, 40, num_rows)
    durations_s = num_steps * (0.018 + 0.0004 * running) + 0.05 * prefills
    start_s = np.concatenate([[0.0], np.cumsum(durations_s)[:-1]]) + 12.0 * (at > 0.85)
    empty = 0.02 + 0.01 * rng.random(num_rows)
    parts = {
        "readable_bytes": held * (0.8 - empty), "out_of_window_bytes": held * 0.05, "empty_slots_bytes": held * empty,
        "padding_layers_bytes": held * 0.15, "cached_full_bytes": cached * 0.9, "unreachable_bytes": cached * 0.1,
        "free_bytes": usable - held - cached, "null_block_bytes": np.ones(num_rows),
    }  # fmt: skip
    parts = {name: parts.get(name, np.zeros(num_rows)) for name in BYTE_COLUMNS}
    is_sampled = np.arange(num_rows) % 5 == 0
    return make_steps(
        step=np.concatenate([[0], np.cumsum(num_steps)[:-1]]), num_steps=num_steps,
        start_s=start_s, end_s=start_s + durations_s,
        prefill_tokens=prefills * rng.integers(50, 4000, num_rows), num_prefills=prefills,
        num_decodes=np.clip(running - prefills, 0, None), running=running, waiting=waiting,
        num_preempted=rng.poisson(0.05 * (waiting > 5)), held_blocks=held, cached_blocks=cached,
        free_blocks=usable - held, evictions=rng.poisson(2.0 * (at > 0.25), num_rows),
        **{name: np.where(is_sampled, blocks * block_bytes, np.nan) for name, blocks in parts.items()},
    )  # fmt: skip
