"""The picture of a server's capacity, and the table beside it."""

import csv
import re
from xml.etree import ElementTree

import pytest

from simulator.capacity import Capacity
from simulator.plots_capacity import write_curve
from simulator.scenario import Scenario, ScenarioError
from simulator.server import plan_server

GIB = 1 << 30


def capacity(model, **settings) -> Capacity:
    return Capacity.of(plan_server(Scenario(model=model, **settings)))


@pytest.fixture
def drawn(tmp_path):
    """Draw a capacity, and give back the rows of the table beside the picture."""

    def draw(model, **settings) -> list[dict[str, str]]:
        write_curve(capacity(model, **settings), tmp_path / "curve.svg")
        with (tmp_path / "curve.csv").open() as file:
            return list(csv.DictReader(file))

    return draw


def points(rows, panel, series, x, y) -> dict[int, float]:
    return {
        int(row[x]): float(row[y])
        for row in rows
        if row["panel"] == panel and row["series"].startswith(series) and row[y]
    }


def texts(path) -> list[str]:
    return [element.text for element in ElementTree.parse(path).iter() if element.tag.endswith("text")]


def test_a_picture_is_what_its_name_says_and_the_table_lies_beside_it(tmp_path):
    pool = capacity("llama-3.1-8b", kv_cache_memory_bytes=20 * GIB)
    assert write_curve(pool, tmp_path / "a" / "curve.PNG") == tmp_path / "a" / "curve.PNG"
    write_curve(pool, tmp_path / "a" / "drawing.svg")
    assert (tmp_path / "a" / "curve.PNG").read_bytes().startswith(b"\x89PNG")
    assert "What one request takes" in texts(tmp_path / "a" / "drawing.svg")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "curve.PNG", "curve.csv", "drawing.csv", "drawing.svg"
    ]  # fmt: skip


def test_full_attention_takes_its_tokens_at_admission_and_while_it_decodes(drawn):
    """128 tokens are 8 blocks of 16 in 32 layers: 8 x 32 x 64 KiB = 16 MiB; 131,072 tokens take 1,024 times that."""
    rows = drawn("llama-3.1-8b", kv_cache_memory_bytes=20 * GIB)
    for series in ("at admission", "while it decodes"):
        taken = points(rows, "bytes of a request", series, "request_tokens", "bytes_per_rank")
        assert (taken[128], taken[131_072]) == (16 << 20, 16 * GIB)


def test_as_many_requests_fit_as_the_pool_has_their_bytes(drawn):
    """20 GiB hold 1,280 requests of 16 MiB, and 1.25 of 16 GiB."""
    rows = drawn("llama-3.1-8b", kv_cache_memory_bytes=20 * GIB)
    fit = points(rows, "requests at once", "while it decodes", "request_tokens", "requests")
    assert (fit[128], fit[131_072]) == (1280, 1.25)


def test_a_window_is_given_back_while_a_request_decodes(drawn):
    """A block is 4 layers of 16 KiB. Of 32,768 tokens the full layers hold 2,048 blocks, and each of six groups
    of windows (5 of 4 layers, 1 of 2): at most ceil((511 + 16,384) / 16) + 1 = 1,057 blocks, then 32 + 1."""
    rows = drawn("gemma-3-1b", kv_cache_memory_bytes=4 * GIB)
    taken = [
        points(rows, "bytes of a request", series, "request_tokens", "bytes_per_rank")[32_768]
        for series in ("at admission", "while it decodes")
    ]
    assert taken == [(2048 + 6 * 1057) * 4 * 16_384, (2048 + 6 * 33) * 4 * 16_384]


def test_lengths_go_to_the_models_longest_though_the_server_accepts_less(drawn, tmp_path):
    rows = drawn("llama-3.1-8b", kv_cache_memory_bytes=20 * GIB, max_model_len=8192)
    taken = points(rows, "bytes of a request", "while it decodes", "request_tokens", "bytes_per_rank")
    assert max(taken) == 131_072
    assert "max_model_len 8,192" in texts(tmp_path / "curve.svg")


def test_a_stated_budget_is_that_of_each_rank(drawn):
    """8 KV heads: with each doubling a rank keeps half of a token's 128 KiB, until with 16 ranks a head is copied."""
    rows = drawn("llama-3.1-8b", kv_cache_memory_bytes=20 * GIB)
    tokens = points(rows, "tensor-parallel size", "GPU KV cache size", "tensor_parallel_size", "kv_cache_tokens")
    assert tokens == {1: 163_840, 2: 327_680, 4: 655_360, 8: 1_310_720, 16: 1_310_720}
    concurrency = points(rows, "tensor-parallel size", "maximum concurrency", "tensor_parallel_size", "requests")
    assert concurrency == {size: held / 131_072 for size, held in tokens.items()}


def test_where_weights_do_not_fit_the_server_is_marked_as_not_starting(drawn, tmp_path):
    """140 GB of weights on one GPU of 80, and on two with too little left for the longest request."""
    rows = drawn("llama-3.1-70b", gpu="h100-80gb", tensor_parallel_size=4)
    refused = {row["tensor_parallel_size"]: row["refusal"] for row in rows if row["series"] == "does not start"}
    assert list(refused) == ["1", "2"]
    assert "of weights on each of 1 h100-80gb" in refused["1"]
    assert "a request of max_model_len 131,072 needs" in refused["2"]
    assert texts(tmp_path / "curve.svg").count("does not start") == 2


def test_only_sizes_over_which_heads_can_be_split_are_shown_and_the_one_asked_for(drawn):
    """96 heads can be split over all five and over 3, the 4 heads of gemma-3-1b not over 8."""

    def sizes(model, tensor_parallel_size) -> list[int]:
        rows = drawn(model, num_gpu_blocks_override=50_000, tensor_parallel_size=tensor_parallel_size)
        return list(points(rows, "tensor-parallel size", "GPU", "tensor_parallel_size", "kv_cache_tokens"))

    assert sizes("kimi-k3", 3) == [1, 2, 3, 4, 8, 16]
    assert sizes("gemma-3-1b", 1) == [1, 2, 4]


def test_a_state_takes_the_same_whatever_the_length(drawn):
    rows = drawn("falcon-mamba-7b", kv_cache_memory_bytes=20 * GIB)
    taken = points(rows, "bytes of a request", "while it decodes", "request_tokens", "bytes_per_rank")
    assert len(set(taken.values())) == 1


def test_equal_capacities_give_equal_bytes(tmp_path):
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        write_curve(capacity("gemma-3-1b", gpu="l4"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("name", ["curve.pdf", "curve", ".png"])
def test_another_format_is_a_mistake_and_nothing_is_written(tmp_path, name):
    said = re.escape(f"--curve: must end in .png or .svg, got {str(tmp_path / name)!r}")
    with pytest.raises(ScenarioError, match=said):
        write_curve(capacity("gemma-3-1b", gpu="l4"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_a_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match=r"--curve: .*curve\.png cannot be written"):
        write_curve(capacity("gemma-3-1b", gpu="l4"), tmp_path / "file" / "curve.png")
