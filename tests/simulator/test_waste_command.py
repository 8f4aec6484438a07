"""`kvplan waste`: what groupings waste of each model's memory."""

import csv
import json

import pytest

from kvcache.errors import KVCacheError
from kvcache.policies import POLICIES, REQUEST_TOKENS, policy_named
from kvcache.waste import GroupedLayers
from models_configs import find_model, list_models
from simulator.capacity import Capacity
from simulator.scenario import Scenario, ScenarioError
from simulator.server import plan_server
from simulator.static_waste import kept_layers, waste_of_model
from simulator.waste_command import print_waste


def ask(name=None, settings=None, **asked):
    given = {"all_models": False, "groupings": [], "request_lengths": [], "threshold_pct": 10.0, "out": None}
    print_waste(name, settings, **{**given, "as_json": False, **asked})


@pytest.fixture
def said(capsys):
    def run(name=None, settings=None, **asked) -> str:
        ask(name, settings, **asked)
        return capsys.readouterr().out

    return run


@pytest.fixture
def rows(said):
    def run(name=None, settings=None, **asked) -> list[dict]:
        return json.loads(said(name, settings, as_json=True, **asked))

    return run


@pytest.fixture(scope="module")
def catalogue():
    """Every model under every policy."""
    return [waste_of_model(model, list(POLICIES.values()), REQUEST_TOKENS) for model in list_models()]


# What comes out


def test_a_row_for_each_policy_and_length(rows):
    assert [(row["policy"], row["request_tokens"]) for row in rows("gemma-3-1b", request_lengths=[128, 512])] == [
        (policy, tokens) for policy in POLICIES for tokens in (128, 512)
    ]


def test_a_rows_ledger_adds_up(rows):
    for row in rows("gemma-3-27b"):
        assert sum(row["ledger"].values()) == row["pool_bytes"]
        assert row["wasted_pct"] == pytest.approx(100 * (1 - row["ledger"]["needed"] / row["pool_bytes"]))


def test_a_policy_that_refuses_says_why(rows):
    (row,) = rows("jamba-v0.1", groupings=["unified"], request_lengths=[8192])
    assert (row["pool_bytes"], row["groups"]) == (None, None)
    assert "the hybrid manager cannot be off" in row["refused"]


def test_lengths_that_a_model_cannot_have_are_left_out_of_the_defaults(rows):
    assert max(row["request_tokens"] for row in rows("gemma-2-9b")) == 8192


def test_vllm_holds_what_capacity_says_that_a_decoding_request_holds(rows):
    capacity = Capacity.of(plan_server(Scenario(model="gemma-3-27b", kv_cache_memory_bytes=40 << 30)))
    (row,) = rows("gemma-3-27b", groupings=["vllm"], request_lengths=[5000])
    assert row["pool_bytes"] == capacity.need(5000).steady_bytes


def test_the_table_has_a_line_for_each_policy(said):
    lines = said("gemma-3-27b", request_lengths=[8192]).splitlines()
    assert lines[1].split() == ["Grouping", "Groups", "Size", "Padding", "8,192"]
    assert lines[2].split() == ["vllm", "7", "10", "8", "6.3"]
    assert [line.split()[0] for line in lines[2 : 2 + len(POLICIES)]] == list(POLICIES)


@pytest.mark.parametrize("name", ["gemma-3-27b", "nemotron-3-super"])
def test_tables_fit_into_80_columns(said, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    assert "document-mamba" in said(name)
    assert "131,072" in said(name)


def test_unacceptable_padding_is_named_with_what_would_fix_it(said):
    last = said("gemma-3-27b").splitlines()[-1]
    assert last == (
        "  1. gemma-3-27b: 11.4 % at 128 tokens (places without a layer); gcd fixes it: at most 0.0 %, 31 groups"
    )


def test_what_no_policy_fixes_is_said_too(said):
    assert "no grouping that holds as little pads less" in said("jamba-v0.1", threshold_pct=1)


def test_padding_below_the_threshold_is_acceptable(said):
    assert "vLLM's padding is nowhere more than 20 %" in said("gemma-3-27b", threshold_pct=20)


def test_tables_picture_and_reports_go_into_a_folder(said, tmp_path):
    said("gemma-3-27b", out=tmp_path / "new", request_lengths=[128, 8192])
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert sorted(written) == ["waste.csv", "waste.html", "waste.md", "waste.png"]
    assert written["waste.png"].startswith(b"\x89PNG")
    table = list(csv.DictReader(written["waste.csv"].decode().splitlines()))
    assert len(table) == 2 * len(POLICIES)
    assert table[0]["padding_layers_bytes"] == str(8 * 8 * 16 * 8192)
    assert "| vllm | 7 | 10 | 8 | 11.4% | 6.3% |" in written["waste.md"].decode()
    assert "gcd fixes it" in written["waste.html"].decode()


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        (None, {}, "MODEL: name one, or ask for --all-models"),
        ("gemma-3-1b", {"all_models": True}, "not both"),
        ("gemma-3-1b", {"request_lengths": [0]}, "--request-len: must be at least 1 token, got 0"),
        ("gemma-2-2b", {"request_lengths": [8193]}, "gemma-2-2b has at most 8,192 tokens, got 8,193"),
        ("gemma-3-1b", {"threshold_pct": 100.0}, "--threshold: must be 0 to less than 100 percent, got 100"),
        ("gemma-3-1b", {"threshold_pct": float("nan")}, "--threshold"),
    ],
)
def test_a_mistake_is_named(name, asked, message):
    with pytest.raises(ScenarioError, match=message):
        ask(name, **asked)


def test_an_unknown_grouping_is_told_the_nearest():
    with pytest.raises(KVCacheError, match="did you mean 'vllm'"):
        ask("gemma-3-1b", groupings=["vlm"])


# What is true of the catalogue


def test_all_models_have_rows(rows):
    found = rows(all_models=True, groupings=["vllm"], request_lengths=[128])
    assert [row["model"] for row in found] == [model.name for model in list_models()]


def test_every_policy_but_unified_groups_every_model(catalogue):
    assert {name for waste in catalogue for name in waste.refused} == {"unified"}


def test_specs_are_aligned_and_grouped_as_by_a_server(catalogue):
    for waste in catalogue:
        server = plan_server(Scenario(model=waste.model.name, num_gpu_blocks_override=2))
        assert waste.published.groups == server.groups


def test_search_is_never_worse_than_vllm_and_better_for_at_least_ten_models(catalogue):
    better = 0
    for waste in catalogue:
        held = {
            name: [waste.grouped[name].waste(length).held_bytes for length in waste.lengths]
            for name in ("search", "vllm")
        }
        assert all(ours <= theirs for ours, theirs in zip(held["search"], held["vllm"], strict=True))
        better += held["search"] != held["vllm"]
    assert better >= 10


def test_two_levels_waste_little_where_attention_is_all_there_is():
    """A window's last block, and what is left of one large page of each type. A large page that must be a multiple
    of all layers' states too is larger than a request: test below.
    """
    wasted_pct = {
        model.name: GroupedLayers.of(policy_named("two-level"), kept_layers(model)).waste(8192).wasted_pct
        for model in list_models()
        if {spec.kind for spec in kept_layers(model).specs} in ({"full", "sliding"}, {"full", "chunked"})
    }
    assert {name for name, pct in wasted_pct.items() if pct >= 2} == {"gemma-3-1b", "mimo-v2-flash", "step-3.5-flash"}
    assert max(wasted_pct.values()) < 3


def test_two_levels_waste_nearly_all_where_states_and_pages_have_no_small_common_multiple():
    grouped = GroupedLayers.of(policy_named("two-level"), kept_layers(find_model("bamba-9b-v2")))
    assert grouped.waste(8192).wasted_pct > 99
