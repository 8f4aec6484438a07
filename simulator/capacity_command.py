"""`kvplan capacity`: what a server would print at start, and what it would not, without a GPU."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from simulator.capacity import Capacity
from simulator.scenario import GIB, Scenario, ScenarioError
from simulator.server import plan_server
from simulator.summary_table import format_bytes

__all__ = ["block_line", "group_lines", "print_capacity"]


def print_capacity(
    settings: dict[str, object],
    serve_words: Sequence[str],
    *,
    request_lengths: Sequence[int],
    curve: Path | None,
    as_json: bool,
) -> None:
    """Print the capacity of the server that `settings` (or a whole serve command) ask for.

    Raises ValueError with one line for a person where it would refuse to start.
    """
    ignored: tuple[str, ...] = ()
    if serve_words:
        from simulator.serve_command import parse_serve_command

        command = parse_serve_command(serve_words)
        settings = {**settings, **command.settings}
        ignored = command.ignored
    capacity = Capacity.of(plan_server(Scenario(**settings)))
    _check_lengths(request_lengths, capacity.layout.max_model_len)
    if curve is not None:
        from simulator.plots_capacity import write_curve

        write_curve(capacity, curve)
    if as_json:
        described = {**capacity.describe(), **_needs(capacity, request_lengths), "ignored": ignored}
        Console(soft_wrap=True).print_json(json.dumps(described), highlight=False)
        return
    console = Console()
    console.print(_table(capacity, request_lengths))
    if curve is not None:
        console.print(f"Picture and table: {curve}, {curve.with_suffix('.csv')}", highlight=False)
    if ignored:
        console.print(f"Ignored, because they do not change KV memory: {', '.join(ignored)}", highlight=False)
    for assumed in capacity.server.model.assumed if _is_from_file(capacity) else ():
        console.print(f"Not in the configuration, assumed: {assumed}", highlight=False)


def _check_lengths(lengths: Sequence[int], max_model_len: int) -> None:
    for length in lengths:
        if not 1 <= length <= max_model_len:
            raise ScenarioError(f"--request-len: must be 1 to {max_model_len:,} tokens (max_model_len), got {length:,}")


def _is_from_file(capacity: Capacity) -> bool:
    return capacity.server.model.hf_id.endswith(".json") or Path(capacity.server.model.hf_id).exists()


def _needs(capacity: Capacity, lengths: Sequence[int]) -> dict[str, object]:
    needs = [capacity.need(length) for length in lengths]
    rows = [
        {
            "tokens": need.num_tokens,
            "admission_bytes": need.admission_bytes,
            "steady_bytes": need.steady_bytes,
            "concurrency": need.concurrency,
            "steady_concurrency": need.steady_concurrency,
        }
        for need in needs
    ]
    return {"requests": rows} if rows else {}


def _table(capacity: Capacity, lengths: Sequence[int]) -> Table:
    table = Table(show_header=False, title=_title(capacity), title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in _lines(capacity, lengths):
        table.add_row(name, value)
    return table


def _title(capacity: Capacity) -> str:
    scenario, gpu = capacity.server.scenario, capacity.server.gpu
    ranks = scenario.tensor_parallel_size * scenario.pipeline_parallel_size
    where = f"{ranks} × {gpu.name}" if gpu else f"{ranks} rank" + "s" * (ranks > 1)
    return f"{capacity.server.model.name} on {where}"


def _lines(capacity: Capacity, lengths: Sequence[int]) -> list[tuple[str, str]]:
    layout, server = capacity.layout, capacity.server
    lines = [
        ("Block", block_line(capacity)),
        *(("Groups" if not nth else "", line) for nth, line in enumerate(group_lines(capacity))),
        *_budget_lines(capacity),
        ("Bytes per block", f"{format_bytes(capacity.bytes_per_block)} ({capacity.bytes_per_block:,})"),
        ("Blocks", f"{layout.num_blocks:,} ({format_bytes(layout.num_blocks * capacity.bytes_per_block)})"),
    ]
    if not layout.groups:
        return [*lines[:1], ("KV cache", "none: no layer keeps anything")]
    lines += [
        ("GPU KV cache size", f"{layout.kv_cache_tokens:,} tokens"),
        ("  as vLLM 0.20 and before", f"{capacity.kv_cache_tokens_v020:,} tokens"),
        ("Maximum concurrency", f"{layout.max_concurrency:.2f}x for {layout.max_model_len:,} tokens per request"),
    ]
    for length in (layout.max_model_len, *lengths):
        need = capacity.need(length)
        lines += [
            (
                f"One request of {length:,} tokens",
                f"{format_bytes(need.admission_bytes)} at most: {need.concurrency:.2f} fit",
            ),
            ("  while it decodes", f"{format_bytes(need.steady_bytes)}: {need.steady_concurrency:.2f} fit"),
        ]
    lines.append(("Longest request", f"{capacity.max_request_tokens:,} tokens"))
    if capacity.max_bootable_num_seqs is not None:
        asked = server.limits.max_num_seqs
        note = f"; with {asked:,} the server would not start" if asked > capacity.max_bootable_num_seqs else ""
        lines.append(("Largest --max-num-seqs", f"{capacity.max_bootable_num_seqs:,}{note}"))
    return [*lines, ("Shortest prompt that can hit", _shortest_hit(capacity))]


def _shortest_hit(capacity: Capacity) -> str:
    shortest, longest = capacity.min_cacheable_prompt_tokens, capacity.layout.max_model_len - 1
    if shortest is None:
        return "none: prefix caching is off"
    if shortest > longest:  # an output token is always left
        return f"none: it would need {shortest:,} tokens, prompts have {longest:,} at most"
    return f"{shortest:,} tokens"


def block_line(capacity: Capacity) -> str:
    """The size of a block, and why it is that."""
    block = f"{capacity.server.block_size:,} tokens"
    if capacity.mamba_padding_pct is None:
        return block
    if all(group.spec.kind == "mamba" for group in capacity.layout.groups):
        return f"{block}: one state of {format_bytes(capacity.state_bytes)}"
    return (
        f"{block}, so that a page of attention holds a state of {format_bytes(capacity.state_bytes)};"
        f" the state is padded by {capacity.mamba_padding_pct:.2f} %"
    )


def group_lines(capacity: Capacity) -> list[str]:
    """Equal groups on one line, as far as they follow one another."""
    lines = []
    for spec, alike in groupby(capacity.layout.groups, key=lambda group: group.spec):
        groups = list(alike)
        reach = next((f" of {value:,}" for name in ("window", "chunk") if (value := getattr(spec, name, None))), "")
        layers = ", ".join(str(len(group.layers)) for group in groups)
        block = "" if spec.block_size == capacity.server.block_size else f"; blocks of {spec.block_size:,} tokens"
        page = format_bytes(spec.page_bytes)
        lines.append(f"{len(groups)} × {spec.kind}{reach}: {layers} layers; page {page}{block}")
    for kind, padding, pct in capacity.padding_warnings:
        layers = f"{padding} padding layer" + "s" * (padding > 1)
        lines.append(f"{layers}: {pct:.2f} % of the {kind} ones, {capacity.padding_slots_pct:.2f} % of all places")
    return lines


def _budget_lines(capacity: Capacity) -> list[tuple[str, str]]:
    """What each rank of each stage has for KV cache, unless blocks were stated."""
    budgets = [stage.budget_bytes for stage in capacity.server.stages if stage.budget_bytes is not None]
    shown = ", ".join(f"{budget / GIB:.2f}" for budget in budgets)
    return (
        [("Memory for KV cache", f"{shown} GiB on each rank" + " of each stage" * (len(budgets) > 1))]
        if budgets
        else []
    )
