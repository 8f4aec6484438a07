"""A point of a study: what its hash depends on, and that its answer is always an answer."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Scenario, simulate
from simulator.fleet_options import FleetOptions
from simulator.study_point import Point, read_once, run_point
from workloads import TraceError, read_trace

SETTINGS = {"model": "llama-3.1-8b", "gpu": "l4", "max_model_len": 4096, "num_requests": 4}


def point(fleet: FleetOptions | None = None, **settings) -> Point:
    return Point(Scenario(**{**SETTINGS, **settings}), fleet or FleetOptions())


def write_trace(path: Path, *lengths: tuple[int, int]) -> Path:
    rows = [
        {"timestamp": 100 * nth, "input_length": prompt, "output_length": output, "hash_ids": [nth]}
        for nth, (prompt, output) in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------------- its hash


@given(st.permutations(sorted({**SETTINGS, "seed": 3, "kv_cache_dtype": "fp8"}.items())))
def test_the_order_of_settings_does_not_count(items):
    assert Point(Scenario(**dict(items))).key == point(seed=3, kv_cache_dtype="fp8").key


@pytest.mark.parametrize(
    "same",
    [{"block_size": 16}, {"gpu": "L4"}, {"model": "meta-llama/Llama-3.1-8B"}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_what_resolves_to_the_same_server_is_the_same_point(same):
    assert point(**same).key == point().key


@pytest.mark.parametrize(
    "other",
    [{"block_size": 32}, {"gpu": "l40s"}, {"seed": 1}, {"num_requests": 5}, {"rate_scale": 2.0}, {"max_num_seqs": 7}],
    ids=str,
)
def test_what_changes_the_run_is_another_point(other):
    assert point(**other).key != point().key


def test_a_fleet_is_its_replicas_in_their_order_and_its_router():
    keys = [
        point(FleetOptions(num_replicas=2)).key,
        point(FleetOptions(num_replicas=3)).key,
        point(FleetOptions(num_replicas=2, router="least-loaded")).key,
        point(FleetOptions(replicas=("count=1", "gpu=l40s"))).key,
        point(FleetOptions(replicas=("gpu=l40s", "count=1"))).key,
        point().key,
    ]
    assert len(set(keys)) == len(keys)
    assert point(FleetOptions(num_replicas=2, router="round-robin")).key == keys[0]


def test_a_trace_counts_by_its_contents_not_by_its_place(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    here = write_trace(tmp_path / "trace.jsonl", (64, 8), (32, 8))
    there = write_trace(tmp_path / "elsewhere" / "other.jsonl", (64, 8), (32, 8))
    changed = write_trace(tmp_path / "changed.jsonl", (64, 8), (33, 8))
    assert point(trace=here).key == point(trace=there).key != point(trace=changed).key


def test_another_version_is_another_point(monkeypatch):
    before = point().key
    monkeypatch.setattr("simulator.study_point.kvplan_version", lambda: "99.0")
    assert point().key != before


def test_a_server_that_cannot_start_has_a_hash_too():
    assert point(model="llama-3.1-70b").key == replace(point(model="llama-3.1-70b")).key != point().key


# -------------------------------------------------------------------------------------------------- its answer


def test_a_point_answers_what_its_run_says():
    result = simulate(Scenario(**SETTINGS))
    assert run_point(point()) == {
        "status": "finished",
        "reason": None,
        "scenario": {name: value for name, value in result.scenario.items() if name != "trace"},
        "capacity": result.capacity,
        "summary": result.summary,
        "gpus": {"l4": 1},
    }


def test_a_point_is_the_same_in_another_process_and_its_answer_plain_json():
    sent = pickle.loads(pickle.dumps(point()))
    assert json.loads(json.dumps(run_point(sent))) == run_point(point())


def test_the_gpus_of_a_fleet_are_counted_by_kind():
    fleet = FleetOptions(replicas=("count=2", "gpu=l40s,tensor_parallel_size=2"))
    assert run_point(point(fleet))["gpus"] == {"l4": 2, "l40s": 2}


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_answer_does_not_say_where_files_lie(tmp_path, num_replicas):
    (tmp_path / "elsewhere").mkdir()
    fleet = FleetOptions(num_replicas=num_replicas)
    here, there = (
        point(fleet, trace=write_trace(folder / "trace.jsonl", (64, 8), (32, 8)))
        for folder in (tmp_path, tmp_path / "elsewhere")
    )
    assert run_point(here) == run_point(there)
    assert str(tmp_path) not in json.dumps(run_point(here))


def test_a_server_that_cannot_start_is_an_answer():
    outcome = run_point(point(model="llama-3.1-70b"))
    assert (outcome["status"], outcome["summary"]) == ("refused", None)
    assert "of weights" in outcome["reason"]


def test_a_breakdown_is_an_answer(monkeypatch):
    def break_down(*_):
        raise RuntimeError("out of\n luck")

    monkeypatch.setattr("simulator.study_point.prepare", break_down)
    outcome = run_point(point())
    assert (outcome["status"], outcome["reason"]) == ("failed", "RuntimeError: out of luck")


# ------------------------------------------------------------------------------------------------- its trace


def test_rows_are_read_once(tmp_path):
    file = write_trace(tmp_path / "trace.jsonl", (64, 8), (32, 8))
    assert list(read_once(file)) == list(read_trace(file))
    assert [one is other for one, other in zip(read_once(file), read_once(file), strict=True)] == [True, True]


def test_a_file_that_changed_is_read_again(tmp_path):
    file = write_trace(tmp_path / "trace.jsonl", (64, 8))
    before = list(read_once(file))
    write_trace(file, (64, 8), (32, 8))
    assert (len(before), len(list(read_once(file)))) == (1, 2)


def test_a_damaged_row_stops_everybody_who_comes_to_it(tmp_path):
    file = write_trace(tmp_path / "trace.jsonl", (64, 8), (32, -8))
    for _ in range(2):
        rows = iter(read_once(file))
        assert next(rows).prompt_tokens == 64
        with pytest.raises(TraceError, match="row 2"):
            next(rows)
