"""`kvplan validate`: what it writes, and what it says where there is nothing to replay."""

import pandas as pd
import pytest


@pytest.fixture
def without_the_sample(monkeypatch):
    monkeypatch.setattr("simulator.validation.silicon_sample.find_spec", lambda name: None)


def test_some_of_the_sample_becomes_a_page_with_pictures(kvplan, tmp_path):
    pytest.importorskip("aiconfigurator_core", reason="the extra `silicon` is not installed")
    run = kvplan("validate", "--every", 150, "--step-times", "roofline", "--workers", 1, "--out", tmp_path / "v")
    assert run.code == 0
    page = (tmp_path / "v" / "validation.md").read_text()
    table = pd.read_csv(tmp_path / "v" / "sample_roofline.csv")
    assert f"{len(table):,} rows" in page
    assert "| a copy of another row | 161 |" in page
    assert sorted(file.name for file in (tmp_path / "v").iterdir()) == [
        "errors_roofline.png", "sample_roofline.csv", "sample_roofline.png", "validation.md",
    ]  # fmt: skip
    assert (table["predicted_tpot_s"] > 0).all()


def test_nothing_to_replay_is_one_line(kvplan, without_the_sample):
    run = kvplan("validate")
    where = 'the published sample comes with pip install "kvplan[silicon]", the run on an RTX 4090 with --data'
    assert (run.code, run.err) == (2, f"kvplan: nothing to replay: {where}\n")


def test_every_so_many_is_a_number_of_points(kvplan):
    run = kvplan("validate", "--every", 0)
    assert (run.code, run.err) == (2, "kvplan: --every: must be at least 1, got 0\n")
