"""What real servers printed at start, and what `kvplan capacity` says to the same command lines."""

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvcache.errors import PoolTooSmallError
from models_configs import find_model
from simulator import Scenario
from simulator.capacity import Capacity
from simulator.server import plan_server
from tests.docs.pages import ROOT
from tests.simulator.server_logs import CONFIGS, LOGS, ServerLog

GIB = 1 << 30
PAGE = ROOT / "docs" / "server_logs.md"
GROW_WITH_THE_POOL = ("blocks", "tokens", "tokens_v020", "concurrency", "longest", "most_requests")
OF_REFUSALS = ("needed_gib", "longest")

Figures = Mapping[str, int | float | None]


@pytest.fixture(scope="module")
def configs(tmp_path_factory) -> Path:
    """A folder for each model that the catalogue lacks, with its config.json."""
    folder = tmp_path_factory.mktemp("configs")
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def name_of(model: str, configs: Path) -> str:
    """What `kvplan capacity` is told for a model."""
    return str(configs / model) if model in CONFIGS else model


# What a server prints


def figures(scenario: Scenario) -> Figures:
    """All that a server prints about its pool, or about a pool that is too small, rounded as it prints it."""
    server = plan_server(scenario)
    try:
        capacity = Capacity.of(server)
    except PoolTooSmallError as refusal:
        return figures_of_a_refusal(str(refusal))
    said = capacity.describe()
    padding_layers, padded_layers = padding(capacity)
    return {
        "blocks": said["num_blocks"],
        "tokens": said["kv_cache_tokens"],
        "tokens_v020": said["kv_cache_tokens_v020"],
        "concurrency": round(said["max_concurrency"], 2),
        "block_size": said["block_size"],
        "state_padding_pct": round(said["mamba_padding_pct"] or 0, 2),
        "padding_layers": padding_layers,
        "padding_layers_pct": round(100 * padding_layers / padded_layers, 2) if padded_layers else 0,
        "most_requests": said["max_bootable_num_seqs"] or 0,
    }


def figures_of_a_refusal(message: str) -> Figures:
    needed = re.search(r"needs ([\d.]+) GiB", message)
    longest = re.search(r"about ([\d,]+) tokens", message)
    return {
        "needed_gib": float(needed[1]) if needed else 0,
        "longest": int(longest[1].replace(",", "")) if longest else 0,
    }


def padding(capacity: Capacity) -> tuple[int, int]:
    """(padding layers, layers among them): a server's warning leaves kinds of layers without padding out."""
    of_kind: dict[object, tuple[int, int]] = {}
    for group in capacity.layout.groups:
        padding_layers, layers = of_kind.get(group.spec, (0, 0))
        of_kind[group.spec] = padding_layers + group.num_padding_layers, layers + len(group.layers)
    padded = [(padding_layers, layers) for padding_layers, layers in of_kind.values() if padding_layers]
    return sum(padding_layers for padding_layers, _ in padded), sum(layers for _, layers in padded)


# Which pool it was


def pools(log: ServerLog, block_bytes: int) -> range:
    """Blocks that a pool may have had: its bytes are printed in GiB with two decimals, or not at all."""
    if log.available_bytes is not None:
        least = most = log.available_bytes // block_bytes
    elif log.available_gib is not None:
        least, most = (int((log.available_gib + error) * GIB) // block_bytes for error in (-0.005, 0.005))
    else:
        least, most = 2, 1 << 22
    # a refusal prints what is there without the null block: not taken off until #47272, and afterwards taken off first
    null_block = any(name in OF_REFUSALS for name in log.printed)
    return range(least + null_block, most + null_block + 1)


def ours(log: ServerLog, configs: Path) -> Figures:
    """The printed figures as kvplan has them, for the smallest of the possible pools that reaches them all."""
    settings = {"model": name_of(log.model, configs), **log.flags}

    def with_blocks(num_blocks: int) -> Figures:
        return figures(Scenario(**{**settings, "num_gpu_blocks_override": num_blocks}))

    def reaches(num_blocks: int) -> bool:
        found = with_blocks(num_blocks)
        return all(found.get(name, -1) >= value for name, value in log.printed.items() if name in GROW_WITH_THE_POOL)

    num_blocks = log.flags.get("num_gpu_blocks_override")
    if num_blocks is None:
        server = plan_server(Scenario(**settings, num_gpu_blocks_override=2))
        possible = pools(log, max(group.bytes_per_block for group in server.groups))
        num_blocks = possible[min(bisect_left(possible, True, key=reaches), len(possible) - 1)]
    found = with_blocks(num_blocks)
    return {name: found.get(name) for name in log.printed}


def name(log: ServerLog) -> str:
    return log.name


@pytest.mark.parametrize("log", [log for log in LOGS if log.ours is None], ids=name)
def test_a_server_printed_what_kvplan_says(log, configs):
    assert ours(log, configs) == log.printed


@pytest.mark.parametrize("log", [log for log in LOGS if log.ours is not None], ids=name)
def test_what_differs_is_known(log, configs):
    """One of these that holds at last belongs to the others, on the page too."""
    assert ours(log, configs) == log.ours != log.printed


def test_one_pool_gives_two_lengths():
    """gpt-oss-120b was started twice with the same memory: 40,858 blocks give both figures."""
    for max_model_len, concurrency in ((81920, 7.77), (98304, 6.51)):
        scenario = Scenario(
            model="gpt-oss-120b",
            max_model_len=max_model_len,
            max_num_batched_tokens=2048,
            async_scheduling=False,
            num_gpu_blocks_override=40858,
        )
        assert figures(scenario)["concurrency"] == concurrency


# Weights, of servers that printed them after loading

WEIGHTS = {
    "gpt-oss-120b": (1, 65.9651),
    "gpt-oss-20b": (1, 13.72),
    "llama-3.1-8b": (1, 14.9888),
    "llama-3.3-70b-fp8": (2, 33.88),
    "minimax-m2": (4, 53.75),
    "qwen2.5-7b": (1, 14.25),
    "qwen3-0.6b": (1, 1.12),
    "qwen3-32b": (2, 30.59),
    "qwen3-8b": (1, 15.2684),
    "qwen3-next-80b-a3b": (2, 74.2812),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_take_what_servers_printed(name, configs):
    """Within 1%. Those of gpt-oss are what an A100's kernels round up; an H100's took 2% less."""
    ranks, gib = WEIGHTS[name]
    model = find_model(name_of(name, configs))
    assert model.weight_bytes(ranks) + model.kernel_padding_bytes(ranks) == pytest.approx(gib * GIB, rel=0.01)


# The page


def test_the_page_has_a_line_for_every_log():
    lines = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    holds = {cells[0].removeprefix("| "): cells[5] for cells in lines if len(cells) == 7}
    assert {log.name: "yes" if log.ours is None else "no" for log in LOGS}.items() <= holds.items()
