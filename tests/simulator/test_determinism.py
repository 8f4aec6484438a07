"""Equal questions get equal answers, to the byte."""

import os
import subprocess
import sys

import pytest

from simulator import Scenario, simulate
from simulator.engine import workload_of


def run_folder_of(folder, hash_seed: int, *flags: str):
    """Run the command in a process of its own, in which sets and dicts of strings have another order."""
    program = [sys.executable, "-c", "from simulator.cli import main; main()"]
    command = ["simulate", "gemma-3-1b", "--gpu", "l4", "--num-requests", "60", *flags, "--no-report", "--out", folder]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    subprocess.run([*program, *command], env=environment, check=True, capture_output=True)
    return folder


def test_two_processes_write_the_same_bytes(tmp_path):
    """Summary and tables of a run in which blocks are evicted and requests preempted."""
    flags = ("--num-gpu-blocks-override", "3000", "--max-model-len", "8192", "--rate-scale", "20")
    one, two = (run_folder_of(tmp_path / str(hash_seed), hash_seed, *flags) for hash_seed in (1, 2))
    names = ("summary.json", "requests.parquet", "steps.parquet")
    assert [(one / name).read_bytes() == (two / name).read_bytes() for name in names] == [True, True, True]


def test_another_seed_is_another_workload():
    zero, zero_again, one = (list(workload_of(Scenario(model="m", seed=seed))) for seed in (0, 0, 1))
    assert zero == zero_again
    assert zero != one


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_a_run_does_not_depend_on_what_ran_before_it(async_scheduling):
    scenario = Scenario(
        model="jamba-v0.1",
        step_time_s=0.02,
        num_gpu_blocks_override=3000,
        num_requests=60,
        max_model_len=8192,
        async_scheduling=async_scheduling,
    )
    first, _, again = simulate(scenario), simulate(Scenario(**{**dict(scenario), "seed": 1})), simulate(scenario)
    assert first.to_json() == again.to_json()
