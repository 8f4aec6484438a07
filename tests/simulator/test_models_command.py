"""`kvplan models`: the catalogue, and one model of it."""

import json

import pytest

from models_configs import UnknownModelError, list_models
from simulator.models_command import draw_pattern, print_models


@pytest.fixture
def said(capsys, monkeypatch):
    """What is printed, in a terminal of so many columns."""

    def run(name=None, columns=120) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        print_models(name, as_json=False)
        return capsys.readouterr().out

    return run


@pytest.fixture
def facts(capsys):
    """The JSON of one model, or of all."""

    def run(name=None):
        print_models(name, as_json=True)
        return json.loads(capsys.readouterr().out)

    return run


# All models


def test_the_catalogue_has_a_row_for_each_model(facts):
    assert [row["name"] for row in facts()] == [model.name for model in list_models()]


def test_a_row_has_the_figures_of_one_rank(facts):
    """A token takes 2 x 16 heads x 128 x 2 bytes = 8 KiB in each layer; a window has 1,024 of them."""
    row = next(row for row in facts() if row["name"] == "gemma-3-27b")
    names = ("attention_mix", "kv_bytes_per_token", "windowed_kv_bytes_per_token", "full_window_bytes", "state_bytes")
    assert [row[name] for name in names] == [
        "52 sliding 1,024 + 10 full", 10 * 8192, 52 * 8192, 52 * 8192 * 1024, 0
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_table_breaks_no_name_and_no_heading(said, columns):
    lines = said(columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert all(any(line.startswith(model.name) for line in lines) for model in list_models())
    assert lines[2].split() == (["Model", "(active)"] if columns < 112 else ["Model", "Attention", "(active)"]) + [
        "GiB", "token", "token", "MiB", "Source"
    ]  # fmt: skip


def test_a_wide_table_has_one_line_per_model(said):
    (line,) = (line for line in said(columns=120).splitlines() if line.startswith("jamba-v0.1 "))
    assert line.split() == [
        "jamba-v0.1", "28", "mamba", "+", "4", "full", "51.6", "(12.1)", "96.1", "16", "8.31", "config"
    ]  # fmt: skip


# One model


def test_a_hybrid_model_says_how_its_layers_are_grouped(facts):
    """A state takes 8192 x (3 + 16) x 2 bytes = 304 KiB; 5 x 16 tokens of 4 KiB hold it with 16 KiB to spare."""
    jamba = facts("jamba-v0.1")
    assert (jamba["state_bytes"], jamba["kv_bytes_per_token"]) == (28 * 311_296, 4 * 4096)
    assert (jamba["block_size"], jamba["mamba_padding_pct"]) == (80, pytest.approx(100 * 16 / 304))
    assert [(group["kind"], group["layers"]) for group in jamba["groups"]] == [*7 * [("mamba", 4)], ("full", 4)]
    assert "".join(jamba["layer_pattern"]) == 4 * "MMMMFMMM"


def test_a_mixture_of_experts_has_fewer_active_parameters(facts):
    scout = facts("llama-4-scout")
    assert scout["active_parameters"] < scout["parameters"] / 6
    assert scout["attention_mix"] == "36 chunked 8,192 + 12 full"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_model_is_shown_with_its_groups_its_sources_and_its_pattern(said, columns):
    shown = said("gemma-3-27b", columns)
    assert max(map(len, shown.splitlines())) <= columns
    for what in (
        "62: 52 sliding 1,024 + 10 full",
        "6 × sliding of 1,024: 9, 9, 9, 9, 8, 8 layers",
        "8 padding layers: 15.38 % of the sliding ones",
        "transcribed from the config.json",
        "attention_bias False",
        "   0  SSSSSF SSSSSF",
        "S  sliding window",
    ):
        assert what in shown


def test_two_mixers_in_a_layer_are_two_letters(said, facts):
    assert set(facts("falcon-h1-0.5b")["layer_pattern"]) == {"FM"}
    assert "   0  FM FM FM" in said("falcon-h1-0.5b")


def test_a_layer_that_reads_anothers_kv_keeps_nothing(facts):
    """30 layers: every fifth full, the last ten with the KV of others. A token takes 2 x 2 heads x 256 x 2 bytes."""
    gemma = facts("gemma-3n-e2b")
    assert "".join(gemma["layer_pattern"]) == 4 * "SSSSF" + 10 * "K"
    assert (gemma["kv_bytes_per_token"], gemma["windowed_kv_bytes_per_token"]) == (4 * 2048, 16 * 2048)


def test_a_layer_without_a_mixer_is_an_mlp(said, facts):
    pattern = facts("nemotron-h-8b")["layer_pattern"]
    assert [pattern.count(letter) for letter in "MF-"] == [24, 4, 24]
    assert "24 mamba + 4 full + 24 MLP only" in said("nemotron-h-8b")


def test_a_file_is_described_with_what_was_assumed(facts, said, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "[red]mine" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    mine = facts(str(path))
    assert mine["kv_bytes_per_token"] == 3 * 2 * 2 * 16 * 2  # layers, key and value, heads, head size, bytes
    assert "head_dim 16" in mine["assumed"]
    assert said(str(path), 300).startswith(f"[red]mine ({path})")


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownModelError, match=r'did you mean "jamba-v0\.1"'):
        print_models("jamba-v0", as_json=False)


# Patterns


def test_repetitions_stand_apart_and_are_not_broken():
    assert draw_pattern(["S", "S", "F"] * 17) == [
        "   0  " + " ".join(16 * ["SSF"]),
        "  48  SSF",
    ]


def test_layers_that_do_not_repeat_are_drawn_in_full_rows():
    assert draw_pattern(["M", *49 * "F"]) == ["   0  M" + 47 * "F", "  48  FF"]


def test_one_layer_is_a_pattern_too():
    assert draw_pattern(["F"]) == ["   0  F"]
