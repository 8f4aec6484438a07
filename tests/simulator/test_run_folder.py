"""What a run leaves on disk: whole files or none."""

import json

import pandas as pd
import pytest

from simulator import Scenario, ScenarioError, simulate
from simulator.run_folder import default_folder, write_run, write_whole


@pytest.fixture(scope="module")
def result():
    return simulate(Scenario(model="gemma-3-1b", step_time_s=0.02, num_gpu_blocks_override=20_000, num_requests=20))


def test_tables_come_back_as_they_were(result, tmp_path):
    folder = write_run(result, tmp_path / "run", with_report=False)
    requests, steps = (pd.read_parquet(folder / f"{name}.parquet") for name in ("requests", "steps"))
    texts = requests.astype(object).where(requests.notna(), None)
    pd.testing.assert_frame_equal(texts, result.requests.astype(object).where(result.requests.notna(), None))
    pd.testing.assert_frame_equal(steps, result.steps)


def test_the_summary_is_the_run_in_json(result, tmp_path):
    """With what was asked for and what the memory holds beside everything measured."""
    folder = write_run(result, tmp_path / "run", with_report=False)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == result.to_json()
    assert list(summary)[:3] == ["scenario", "capacity", "requests"]


def test_a_run_replaces_the_files_of_the_one_before(result, tmp_path):
    (tmp_path / "summary.json").write_text("old")
    write_run(result, tmp_path, with_report=False)
    assert json.loads((tmp_path / "summary.json").read_text()) == result.to_json()


def test_a_folder_that_cannot_be_made_is_a_mistake(result, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ScenarioError, match=r"^--out: .*file cannot be made a folder: File exists$"):
        write_run(result, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("model", "name"), [("gemma-3-27b", "gemma-3-27b"), ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"), ("a/b/", "b")]
)
def test_a_runs_own_folder_has_its_model_and_time_in_its_name(model, name):
    folder = default_folder(Scenario(model=model))
    assert folder.parent.name == "runs"
    assert pd.to_datetime(folder.name.removeprefix(f"{name}-"), format="%Y%m%d-%H%M%S") is not pd.NaT


# Whole or not at all


def fail_halfway(path):
    path.write_text("half")
    raise OSError("no space left")


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "table", fail_halfway)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_fails_leaves_the_old_file_as_it_was(tmp_path):
    (tmp_path / "table").write_text("old")
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "table", fail_halfway)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("table", "old")]


def test_nobody_sees_a_file_before_it_is_whole(tmp_path):
    target = tmp_path / "table"

    def write(path):
        path.write_text("half")
        assert not target.exists()
        path.write_text("whole")

    write_whole(target, write)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("table", "whole")]
