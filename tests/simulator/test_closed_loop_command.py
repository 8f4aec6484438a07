"""Closed loops on the command line: what they take, write, draw and describe, and how they say no."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from simulator import Scenario, simulate
from simulator.plots_sessions import draw_sessions, session_figures
from simulator.progress import RunProgress
from tests.simulator.test_cli import trace  # noqa: F401  a fixture
from tests.simulator.test_progress import terminal  # noqa: F401  a fixture
from workloads import conversation_demo_sessions

SIMULATE = ("simulate", "gemma-3-1b", "--gpu", "l4")


def agent_call(t: float, tokens: int, **fields) -> dict:
    return {"t": t, "type": "n", "in": tokens, "out": 4, "hash_rle": [1, tokens // 64], **fields}


@pytest.fixture
def agents(tmp_path):
    """Two sessions of two calls; the second one starts a sub-agent between them."""
    helper = {
        "t": 30.0,
        "type": "subagent",
        "duration_ms": 20_000,
        "status": "completed",
        "requests": [agent_call(0, 640)],
    }
    calls = [agent_call(0.0, 640, api_time=8.0), agent_call(40.0, 700, think_time=32.0)]
    rows = [
        {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}
        for name, requests in (("plain", calls), ("helped", [calls[0], helper, calls[1]]))
    ]
    path = tmp_path / "agents.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_sessions_write_a_table_and_a_figure_of_their_own(kvplan, agents, tmp_path):
    done = kvplan(*SIMULATE, "--trace", agents, "--concurrent-sessions", 1, "--out", "here")
    assert (done.code, done.err) == (0, "")
    assert "Sessions completed" in done.out
    sessions = pq.read_table(tmp_path / "here" / "sessions.parquet")
    assert sessions.column("session").to_pylist() == ["plain", "helped"]
    assert sessions.column("num_subagents").to_pylist() == [0, 1]
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert (summary["sessions"]["completed"], summary["sessions"]["at_once"]["max"]) == (2, 1)
    assert summary["scenario"]["concurrent_sessions"] == 1
    requests = pq.read_table(tmp_path / "here" / "requests.parquet")
    assert requests.column("request_id").to_pylist() == ["plain/1", "plain/2", "helped/1", "helped/1.1/1", "helped/2"]
    assert 'id="sessions' in (tmp_path / "here" / "report.html").read_text()


def test_a_fleet_serves_sessions(kvplan, agents):
    flags = ("--replicas", 2, "--router", "session-affinity", "--session-rate", 0.5, "--max-think-time-s", 3)
    done = kvplan(*SIMULATE, "--trace", agents, *flags, "--no-report", "--json")
    said = json.loads(done.out)
    assert (said["requests"]["finished"], said["sessions"]["completed"]) == (5, 2)
    assert said["sessions"]["duration_s"]["max"] < 20


def test_only_so_many_sessions_are_replayed(kvplan, agents):
    done = kvplan(*SIMULATE, "--trace", agents, "--session-rate", 1, "--num-sessions", 1, "--no-report", "--json")
    assert json.loads(done.out)["requests"]["finished"] == 2


def test_requests_in_flight_have_no_table_of_sessions(kvplan, trace, tmp_path):  # noqa: F811
    done = kvplan(*SIMULATE, "--trace", trace, "--concurrency", 2, "--no-report", "--json", "--out", "here")
    assert json.loads(done.out)["running"]["max"] == 2
    assert not (tmp_path / "here" / "sessions.parquet").exists()


def test_equal_runs_leave_equal_bytes(kvplan, agents, tmp_path):
    for name in ("one", "other"):
        kvplan(*SIMULATE, "--trace", agents, "--concurrent-sessions", 2, "--replicas", 2, "--out", name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "sessions.parquet" in files
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes() for name in files)


# How it says no


def test_sessions_without_a_word_of_how_they_come(kvplan, agents, tmp_path):
    done = kvplan(*SIMULATE, "--trace", agents, "--out", "here")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"kvplan: {agents}: holds sessions, whose requests wait for one another: only")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--concurrent-sessions", 1), "holds single requests with times of arrival, not sessions"),
        (
            ("--concurrency", 1, "--timeline", "t.json"),
            "--timeline: goes with requests that arrive at times of their own",
        ),
        (("--concurrency", 1, "--session-rate", 2), "--concurrency: keeps single requests in flight"),
        (("--replica", "concurrency=3"), "--replica: concurrency is the same for all replicas: say --concurrency"),
        (("--session-rate", 0), "--session-rate: must be greater than 0, got 0.0"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(kvplan, trace, tmp_path, flags, said):  # noqa: F811
    done = kvplan(*SIMULATE, "--trace", trace, *flags, "--out", "here")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert not (tmp_path / "here").exists()


def test_requests_of_a_closed_loop_are_not_explained(kvplan, agents):
    kvplan(*SIMULATE, "--trace", agents, "--concurrent-sessions", 1, "--no-report", "--out", "here")
    done = kvplan("explain", "here", "plain/1")
    assert (done.code, done.err) == (
        2,
        "kvplan: here is a run in a closed loop: kvplan explains requests with arrivals of their own only\n",
    )


# Described


def test_a_trace_of_sessions_is_described(kvplan, agents, tmp_path):
    done = kvplan("trace", agents)
    assert (done.code, done.err) == (0, "")
    assert all(said in done.out for said in ("Sessions", "1 with 1 calls; 0 run beside", "Think time (s)"))
    assert not list(tmp_path.glob("*.png"))


def test_a_trace_of_sessions_is_described_as_json(kvplan, agents):
    said = json.loads(kvplan("trace", agents, "--json").out)
    assert (said["num_sessions"], said["num_calls"], said["think_time_s"]["max"]) == (2, 5, 32.0)


def test_there_is_no_picture_of_sessions(kvplan, agents):
    done = kvplan("trace", agents, "--out", "mine.png")
    assert (done.code, done.err) == (
        2, "kvplan: --out: sessions have no times of arrival, so there is no picture of them\n",
    )  # fmt: skip


# Progress


def test_progress_knows_how_many_calls_sessions_have(terminal, capsys):  # noqa: F811
    with RunProgress(Scenario(model="m", concurrent_sessions=3, num_sessions=10), shown=True) as progress:
        terminal[0] = 2.0
        progress.update(now_s=90.0, num_ended=20)
    (task,) = progress._progress.tasks
    assert (task.total, task.completed) == (conversation_demo_sessions(10).count_calls(), 20)
    assert "20 requests, 90 s simulated, 10/s" in capsys.readouterr().err


@pytest.mark.parametrize(("stated", "total"), [({}, 400), ({"num_requests": 7}, 7)])
def test_progress_knows_how_many_requests_will_be_in_flight(terminal, capsys, stated, total):  # noqa: F811
    with RunProgress(Scenario(model="m", concurrency=3, **stated), shown=True) as progress:
        assert progress._progress.tasks[0].total == total
    capsys.readouterr()


# The figure


def test_the_figure_shows_sessions_and_the_requests_in_flight():
    figure = Figure()
    draw_sessions(simulate(Scenario(model="gemma-3-1b", gpu="l4", concurrent_sessions=5, num_sessions=20)), figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["open sessions", "requests in flight"]
    sessions, requests = (np.asarray(line.get_ydata()) for line in figure.axes[0].lines)
    assert sessions.max() == 5
    assert (requests <= sessions + 1e-9).all()


def test_a_run_without_sessions_has_no_such_figure():
    assert session_figures(simulate(Scenario(model="gemma-3-1b", gpu="l4", num_requests=5))) == {}
