"""`--back-with`: the same run on real memory, measured; and one clear line where that is not possible."""

import json
import subprocess
import sys

import pytest
import torch

from simulator import Scenario, ScenarioError, simulate
from simulator.measured_memory import measured_lines
from simulator.report import render_report
from simulator.run_folder import write_run
from tests.docs.pages import ROOT, run_command

RUN = {"model": "gemma-3-27b", "gpu": "h100-80gb", "max_model_len": 8192, "num_requests": 60, "rate_scale": 8}
NEEDS_TORCH = "--back-with: cpu needs PyTorch: pip install 'kvplan[tensors]'"


@pytest.fixture(scope="module")
def backed():
    return simulate(Scenario(**RUN, back_with="cpu", pool_fraction=0.004))


def test_a_run_is_the_same_with_real_memory_behind_it(backed):
    plain = simulate(Scenario(**RUN))
    assert backed.summary == plain.summary
    assert backed.requests.equals(plain.requests)
    assert backed.steps.equals(plain.steps)


def test_allocated_bytes_are_the_predicted_ones(backed):
    measured = backed.measured_memory
    assert measured["predicted_bytes"] == backed.capacity["pool_bytes"]
    assert measured["pool_fraction"] == 1 / 128
    assert measured["storage_bytes"] == measured["backed_bytes"] == measured["predicted_bytes"] // 128
    (buffer,) = measured["buffers"]
    assert buffer["requested"] == buffer["allocated"] == measured["storage_bytes"] // measured["num_buffers"]


def test_what_was_touched_is_what_was_held_at_some_time(backed):
    """Blocks are taken where others were given back, so that much of a pool may never be touched."""
    touched = backed.measured_memory["touched_blocks"]
    assert backed.steps["held_blocks"].max() <= touched < backed.capacity["num_blocks"]
    assert backed.measured_memory["marks_read"] >= backed.measured_memory["marks_written"] > 0


def test_the_summary_and_the_report_show_it(backed, tmp_path):
    folder = write_run(backed, tmp_path)
    assert json.loads((folder / "summary.json").read_text())["measured_memory"] == backed.measured_memory
    shown = dict(measured_lines(backed.measured_memory))
    assert shown["Scaled"] == "pages are 1/128 of their size; blocks and tables are the run's own"
    assert shown["Allocated"].endswith("to the byte")
    page = (folder / "report.html").read_text()
    assert [name for name in ("Measured memory", *shown) if name not in page] == []


def test_a_run_without_it_says_nothing_of_it():
    result = simulate(Scenario(**{**RUN, "num_requests": 2}))
    assert "measured_memory" not in result.to_json()
    assert "Measured memory" not in render_report(result)


def test_without_pytorch_it_says_how_to_install_it(monkeypatch):
    for name in ("kvcache.pages", "simulator.marked_pool", "simulator.witness_tables", "simulator.witness"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("kvcache.pages", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ScenarioError) as error:
        simulate(Scenario(**RUN, back_with="cpu"))
    assert str(error.value) == NEEDS_TORCH


def test_nothing_else_loads_pytorch():
    code = "import sys, simulator.cli, simulator.engine, simulator.report; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "False\n"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--pool-fraction 0.5", "--pool-fraction: goes with --back-with only"),
        ("--back-with gpu", "--back-with: must be 'cpu' or 'cuda', got 'gpu'; did you mean 'cpu'?"),
        (
            "--back-with cpu --pool-fraction 0.001",
            "--pool-fraction: pages cannot be divided by 512: 4 bytes of a key would be left, a mark takes 8",
        ),
    ],
)
def test_mistakes_are_one_line(flags, line, tmp_path):
    run = "kvplan simulate llama-3.1-8b --gpu l4 --max-model-len 4096 --num-requests 2"
    printed = run_command(f"{run} {flags}", tmp_path)
    assert printed == f"kvplan: {line}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line():
    with pytest.raises(ValueError, match="--back-with: no CUDA device is there for cuda"):
        simulate(Scenario(**RUN, back_with="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_allocator_and_the_device_are_asked():
    measured = simulate(Scenario(**RUN, back_with="cuda", pool_fraction=0.05)).measured_memory
    grown = measured["allocated"]["allocated_bytes"] - measured["before"]["allocated_bytes"]
    assert 0 <= grown - measured["backed_bytes"] < 512
    assert measured["before"]["device_free_bytes"] > measured["allocated"]["device_free_bytes"]
    assert measured["bandwidth"]["copy_bytes_per_s"] > 1e11
