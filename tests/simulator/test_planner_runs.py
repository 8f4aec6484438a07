"""Trials are answered once, by workers that may be elsewhere."""

import json

import pytest

from simulator import Scenario, ScenarioError
from simulator.executors import ThisProcess
from simulator.planner_runs import TrialRunner
from simulator.planner_trial import Trial
from simulator.slo import parse_slo
from simulator.study_store import PointStore


def write_trace(file, output_length: int) -> None:
    rows = [{"timestamp": 100 * nth, "input_length": 32, "output_length": output_length} for nth in range(3)]
    file.write_text("".join(json.dumps({**row, "hash_ids": [0]}) + "\n" for row in rows))


def test_a_worker_with_other_contents_of_the_trace_gives_no_answer(tmp_path):
    trace, store = tmp_path / "trace.jsonl", PointStore(tmp_path / "trials")
    store.open()
    write_trace(trace, 20)
    trial = Trial(Scenario(model="llama-3.1-8b", gpu="h100-80gb", trace=trace), 1, None, parse_slo(["ttft.p90=1s"]))
    key = trial.key
    write_trace(trace, 300)
    with ThisProcess().open() as pool, pytest.raises(ScenarioError, match="other contents of the trace"):
        TrialRunner(pool, store).outcomes([trial])
    assert store.load([key])[0] == {}
