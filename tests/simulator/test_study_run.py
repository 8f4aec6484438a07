"""A study gives the same table however it is run: at once, in pieces, by other workers, after damage."""

import json
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.executors import LocalProcesses, ThisProcess, executors_at
from simulator.prices import known_prices
from simulator.scenario import Scenario, ScenarioError
from simulator.study_point import Point
from simulator.study_run import run_points
from simulator.study_store import PointStore
from simulator.study_table import StudyTable, tabulate
from tests.simulator.studies import SMALL, study_of, table_of


def contents(table: StudyTable) -> tuple[str, bytes]:
    """Of table.csv and table.parquet."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "table.parquet"
        table.write_parquet(file)
        return table.to_csv(), file.read_bytes()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return study_of(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def uninterrupted(study, tmp_path_factory):
    store = PointStore(tmp_path_factory.mktemp("points"))
    return store, contents(table_of(study, store))


def run_by(executors, study):
    outcomes = {}
    points = {each.point.key: each.point for each in study.points}
    run_points(points, executors, outcomes.__setitem__)
    return contents(tabulate(study, outcomes, known_prices()))


def test_while_points_run_there_is_time_for_something_else(study):
    """Once, when the first points are given out, and before any outcome is taken."""
    points, events = {each.point.key: each.point for each in study.points}, []
    run_points(
        points, ThisProcess(),
        on_outcome=lambda key, outcome: events.append("outcome"),
        on_running=lambda num_running: events.append(num_running) if not events else None,
        meanwhile=lambda: events.append("meanwhile"),
    )  # fmt: skip
    assert events == [1, "meanwhile", *["outcome"] * len(points)]


# ---------------------------------------------------------------------------------------------------- resuming


@given(
    st.lists(st.sampled_from(["kept", "missing", "cut", "not JSON", "another's", "changed"]), min_size=6, max_size=6)
)
@settings(max_examples=15, deadline=None)
def test_a_study_goes_on_from_whatever_is_left(study, uninterrupted, fates):
    """Files that are cut, spoilt, changed or another point's are found, and their points run again."""
    store, expected = uninterrupted
    with TemporaryDirectory() as folder:
        rest = PointStore(Path(folder))
        files = sorted(store.folder.iterdir())
        for file, other, fate in zip(files, [*files[1:], files[0]], fates, strict=True):
            text = file.read_text(encoding="utf-8")
            left = {
                "kept": text,
                "cut": text[: len(text) // 2],
                "not JSON": "{",
                "another's": other.read_text(encoding="utf-8"),
                "changed": text.replace('"finished": 4', '"finished": 3'),
            }
            if fate != "missing":
                (rest.folder / file.name).write_text(left[fate], encoding="utf-8")
        keys = [each.point.key for each in study.points]
        _, damaged = rest.load(keys)
        assert len(damaged) == sum(fate not in {"kept", "missing"} for fate in fates)
        assert contents(table_of(study, rest)) == expected


def test_a_point_that_is_kept_is_not_run_again(study, uninterrupted, monkeypatch):
    store, expected = uninterrupted
    monkeypatch.setattr("simulator.study_run.run_point", lambda point: pytest.fail("it ran"))
    assert contents(table_of(study, store)) == expected


def test_a_breakdown_is_tried_again_and_a_refusal_is_not(tmp_path):
    store = PointStore(tmp_path)
    for key, status in (("a", "failed"), ("b", "refused"), ("c", "finished")):
        store.save(key, {"status": status, "reason": None})
    kept, damaged = store.load(["a", "b", "c", "d"])
    assert (sorted(kept), damaged) == (["b", "c"], [])


def test_nothing_half_written_stays(tmp_path):
    store = PointStore(tmp_path)
    store.save("a", {"status": "finished", "reason": None})
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["key"] == "a"


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "points").write_text("")
    with pytest.raises(ScenarioError, match="cannot be made a folder"):
        PointStore(tmp_path / "points").open()


# --------------------------------------------------------------------------------------------------- executors


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_do_not_change_the_table(study, uninterrupted, num_workers):
    assert run_by(LocalProcesses(num_workers), study) == uninterrupted[1]


def test_a_cluster_gives_the_same_table(study, uninterrupted):
    """Two worker processes of a real Dask scheduler, reached by its address."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        executors = executors_at(f"dask://{cluster.scheduler_address.removeprefix('tcp://')}")
        assert executors.num_workers == 2
        assert run_by(executors, study) == uninterrupted[1]


def test_a_scheduler_that_does_not_answer_is_one_line(study, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("simulator.dask_cluster._SECONDS_TO_ANSWER", 1)
    with pytest.raises(ScenarioError, match="no Dask scheduler answers at tcp"):
        run_by(executors_at("dask://127.0.0.1:9"), study)


@pytest.mark.parametrize(
    ("address", "workers", "mistake"),
    [
        ("ray://x", None, "--executor: must be dask://HOST:PORT, the scheduler's address, got 'ray://x'"),
        ("dask://", None, "--executor: must be dask://HOST:PORT, the scheduler's address, got 'dask://'"),
        ("dask://x:1", 2, "--workers: does not go with --executor: a cluster has its own"),
        (None, 0, "--workers: must be at least 1, got 0"),
    ],
)
def test_an_executor_that_is_none_is_refused(address, workers, mistake):
    with pytest.raises(ScenarioError) as refused:
        executors_at(address, workers)
    assert str(refused.value) == mistake


class _KillsItsProcess(Point):
    """In a worker it ends the worker, as a system short of memory does."""

    def __getstate__(self):
        return self.__dict__ | {"key": self.key}

    def __setstate__(self, state):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_point_that_kills_its_worker_fails_alone(study, uninterrupted):
    """Its neighbours, whose workers are gone too, run again."""
    points = {each.point.key: each.point for each in study.points}
    deadly = _KillsItsProcess(Scenario(model="llama-3.1-8b", gpu="l40s", max_model_len=4096, num_requests=1))
    outcomes = {}
    run_points({deadly.key: deadly, **points}, LocalProcesses(2), outcomes.__setitem__)
    lost = outcomes.pop(deadly.key)
    assert (lost["status"], lost["reason"]) == (
        "failed",
        "its process was killed, twice: does it need too much memory?",
    )
    assert contents(tabulate(study, outcomes, known_prices())) == uninterrupted[1]


def test_a_worker_with_another_trace_says_so(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 64, "output_length": 8, "hash_ids": [1]}\n', encoding="utf-8")
    point = Point(Scenario(model="llama-3.1-8b", gpu="l40s", max_model_len=4096, trace=trace))
    key = point.key
    trace.write_text('{"timestamp": 0, "input_length": 64, "output_length": 9, "hash_ids": [1]}\n', encoding="utf-8")
    os.utime(trace, (1, 1))
    outcomes = {}
    run_points({key: point}, ThisProcess(), outcomes.__setitem__)
    assert outcomes[key]["reason"] == "the worker has another version of kvplan, or other contents of the trace"


def test_one_failed_point_does_not_end_a_study(tmp_path, monkeypatch):
    study = study_of(tmp_path, SMALL.replace("block-size = [16, 32]", 'model = ["llama-3.1-8b", "llama-3.1-70b"]')
                     .replace('model = "llama-3.1-8b"\n', ""))  # fmt: skip
    table = table_of(study, PointStore(tmp_path / "points"))
    assert [row.status for row in table.rows] == ["finished"] * 3 + ["refused"] * 3
