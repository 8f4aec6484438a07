"""The timeline of a run: what stands in it, that a viewer can read it, and that it is written whole or not at all."""

import gzip
import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Scenario, ScenarioError, simulate
from simulator.cli import main
from simulator.engine import run_to_the_end
from simulator.latency import ConstantStepTimes
from simulator.pool_bytes import BYTE_COLUMNS
from simulator.recorder import Recorder
from simulator.table import frame_of
from simulator.timeline import COUNTERS, FIRST_LANE, REQUESTS, STEPS, Timeline, writing
from tests.kvcache.pools import full, mamba, sliding
from tests.simulator.conftest import CHUNKS_LEAVE_NO_BUDGET, Arrival, new_request, new_scheduler
from workloads import Arrivals, Lengths, Trace, TraceRequest, Traffic, synthesize

S = 1_000_000
"""Microseconds."""
LLAMA = {"model": "llama-3.1-8b", "step_time_s": 0.02}


class Run:
    """A run on the small server of conftest: its timeline read back, and its tables."""

    def __init__(self, file: Path, requests: list[Arrival], step_s: float = 1.0, **server) -> None:
        scheduler = new_scheduler(**server)
        named = [
            new_request(scheduler, *row) for row in zip(ascii_lowercase, range(len(requests)), requests, strict=False)
        ]
        recorder = Recorder(scheduler)
        with writing(file) as events:
            self.timeline = Timeline(events, scheduler, recorder)
            arrivals = self.timeline.watch(iter(sorted(named, key=lambda request: request.arrival_s)))
            run_to_the_end(scheduler, ConstantStepTimes(step_s), arrivals, self.timeline)
        self.requests = {request.request_id: request for request in named}
        self.steps = frame_of(recorder.steps_table())
        self.table = frame_of(recorder.requests_table())
        self.events = read(file)

    def life(self, name: str) -> list[tuple]:
        """(phase, from, to, tokens) of all that a request went through, in seconds."""
        return [
            (event["cat"], event["ts"] / S, (event["ts"] + event["dur"]) / S, event["args"].get("tokens"))
            for event in slices_of(self.events, REQUESTS)
            if event["args"]["request"] == name
        ]


def read(file: Path) -> list[dict]:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return json.loads(text)["traceEvents"]


def slices_of(events: list[dict], pid: int) -> list[dict]:
    return [event for event in events if event["ph"] == "X" and event["pid"] == pid]


@pytest.fixture
def serve(tmp_path):
    return lambda requests, **server: Run(tmp_path / "run.json.gz", requests, **server)


def trace_of(*requests: tuple[float, int, int]) -> Trace:
    """A trace of (arrival, prompt, output)."""
    rows = [TraceRequest(str(row), *request, session="chat") for row, request in enumerate(requests)]
    return Trace("by hand", None, lambda: iter(rows), len(rows))


def busy_traffic(num_requests: int = 60) -> Trace:
    traffic = Traffic(Arrivals.poisson(30.0), Lengths.lognormal(900, 1.0, 3000), Lengths.fixed(150))
    return synthesize(traffic, num_requests, seed=1)


BUSY = {**LLAMA, "num_gpu_blocks_override": 400, "max_model_len": 4096, "max_num_batched_tokens": 2048}
"""Too few blocks for `busy_traffic`: requests wait, and are preempted."""


# What stands in it


def test_the_life_of_a_request_that_waits_is_preempted_and_comes_back(serve):
    """Eight tokens a step: "a" decodes and leaves seven to "b". At 5 "a" needs a block of "b", and it ends at 8.

    Two blocks of "b" are hit then, so four of its twelve tokens are computed again.
    """
    story = serve(
        [Arrival(0.0, prompt=8, output=8), Arrival(0.5, prompt=9, output=5)], num_blocks=7, max_num_batched_tokens=8
    )
    assert story.life("a") == [("prefill", 0, 1, 8), ("decode", 1, 8, 7)]
    assert story.life("b") == [
        ("queued", 0.5, 1, None),
        ("prefill", 1, 2, 7),
        ("prefill", 2, 3, 2),
        ("decode", 3, 5, 2),
        ("preempted", 5, 8, None),
        ("prefill", 8, 9, 4),
        ("decode", 9, 10, 1),
    ]


def test_planned_ahead_a_request_is_drawn_where_it_runs(serve):
    """ "b" comes while the first step runs, behind which the second is planned already: it runs in the third."""
    story = serve([Arrival(0.0, prompt=4, output=5), Arrival(0.5, prompt=4, output=2)], async_scheduling=True)
    assert story.life("a") == [("prefill", 0, 1, 4), ("decode", 1, 5, 4)]
    assert story.life("b") == [("queued", 0.5, 2, None), ("prefill", 2, 3, 4), ("decode", 3, 4, 1)]


def test_a_step_that_the_budget_does_not_reach_is_a_gap(serve):
    """The third request decodes until 4, then the second's chunks take the whole budget of two steps."""
    decodes = [span[1:] for span in serve(**CHUNKS_LEAVE_NO_BUDGET).life("c") if span[0] == "decode"]
    assert decodes == [(2, 4, 2), (6, 12, 6)]


def test_a_slice_says_whose_it_is(tmp_path):
    simulate(Scenario(**BUSY), trace_of((3.0, 100, 50)), timeline=tmp_path / "t.json")
    prefill, decode = slices_of(read(tmp_path / "t.json"), REQUESTS)
    request = {"request": "0", "prompt_tokens": 100, "output_tokens": 50, "cached_tokens": 0, "session": "chat"}
    assert (prefill["name"], decode["name"]) == ("0 prefill", "0 decode")
    assert prefill["args"] == {**request, "tokens": 100, "computed_before": 0}
    assert decode["args"] == {**request, "tokens": 49}


def test_a_lane_is_taken_again(serve):
    """ "c" comes when "a" has ended, and "b" has not."""
    run = serve([Arrival(0.0, 4, 2), Arrival(0.0, 4, 9), Arrival(3.5, 4, 2), Arrival(20.0, 4, 1)])
    lanes = {event["args"]["request"]: event["tid"] - FIRST_LANE for event in slices_of(run.events, REQUESTS)}
    assert lanes == {"a": 0, "b": 1, "c": 0, "d": 0}


def test_who_does_not_fit_is_there_with_the_reason(serve):
    """It is looked at when nobody else holds blocks."""
    run = serve([Arrival(0.0, prompt=4, output=3), Arrival(0.5, prompt=100, output=1)], num_blocks=4)
    (rejected,) = (event for event in run.events if event["ph"] == "i")
    assert (rejected["name"], rejected["ts"]) == ("b rejected", 3 * S)
    assert rejected["args"]["reason"] in set(run.table["reason"])
    assert run.life("b") == [("queued", 0.5, 3, None)]


def test_who_is_turned_away_at_the_door_has_no_lane(tmp_path):
    result = simulate(Scenario(**BUSY), trace_of((1.0, 5000, 1)), timeline=tmp_path / "t.json")
    events = read(tmp_path / "t.json")
    (rejected,) = (event for event in events if event["ph"] == "i")
    assert (rejected["name"], rejected["ts"], slices_of(events, REQUESTS)) == ("0 rejected", 1 * S, [])
    assert [rejected["args"]["reason"]] == result.requests["reason"].tolist()


def test_the_steps_are_the_rows_of_the_table(serve):
    run = serve([Arrival(0.0, prompt=40, output=30), Arrival(9.5, prompt=20, output=5)], max_num_batched_tokens=16)
    columns = ["step", "num_steps", "prefill_tokens", "num_prefills", "num_decodes"]
    steps = slices_of(run.events, STEPS)
    assert [[event["args"][name] for name in columns] for event in steps] == run.steps[columns].values.tolist()
    assert [event["ts"] for event in steps] == (run.steps["start_s"] * S).tolist()
    assert [event["dur"] for event in steps] == ((run.steps["end_s"] - run.steps["start_s"]) * S).tolist()
    assert {event["name"] for event in steps} == {"prefill", "prefill + decode", "decode"}


# Whatever happens

COUNTS = ["running", "waiting", "held_blocks", "cached_blocks", "free_blocks"]
arrivals = st.builds(
    lambda at_s, prompt, output, shared, priority: Arrival(at_s, prompt, output, tuple(range(shared)), priority),
    st.integers(0, 30), st.integers(1, 40), st.integers(1, 20), st.integers(0, 15), st.integers(0, 2),
)  # fmt: skip
LAYERS = {"full": [full(4)], "sliding": [full(4), sliding(9, 4)], "mamba": [full(4), mamba(4)]}
BOTH_MODES = pytest.mark.parametrize("async_scheduling", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("timelines")


@BOTH_MODES
@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=25)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=8),
    num_blocks=st.integers(18, 60),
    budget=st.sampled_from([5, 16, 64]),
    policy=st.sampled_from(["fcfs", "priority"]),
    step_s=st.sampled_from([1.0, 1 / 3, 0.0123456789, 3e-7]),
)
def test_a_run_adds_up(folder, name, async_scheduling, requests, num_blocks, budget, policy, step_s):
    """A viewer can read it, every computed token is in it, and each request is there from arrival to end."""
    run = Run(
        folder / "run.json",
        requests,
        step_s,
        layers=LAYERS[name],
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=5,
        scheduling_policy=policy,
        async_scheduling=async_scheduling,
    )
    check_format(run.events)
    computed = run.steps["prefill_tokens"] + run.steps["num_decodes"] * run.steps["num_steps"]
    spans = [span for request in run.requests for span in run.life(request)]
    assert sum(tokens or 0 for *_, tokens in spans) == tokens_of_steps(run.events) >= computed.sum()
    check_lives(run)
    check_lanes(run)
    assert (run.timeline._lives, len(run.timeline._in_flight)) == ({}, 0)


def tokens_of_steps(events: list[dict]) -> int:
    work = [event["args"] for event in slices_of(events, STEPS)]
    return sum(step["prefill_tokens"] + step["num_decodes"] * step["num_steps"] for step in work)


def check_format(events: list[dict]) -> None:
    """What the Trace Event Format asks for, and that slices of one thread nest or follow one another."""
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    sorted_threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_sort_index"}
    processes = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert processes == {"steps": STEPS, "counters": COUNTERS, "requests": REQUESTS}
    assert named == sorted_threads
    assert len({tid for _, tid in named}) == len(named)
    threads = defaultdict(list)
    for event in events:
        assert {type(event["pid"]), type(event["tid"])} == {int}
        assert event["ph"] in {"M", "X", "C", "i"}
        if event["ph"] != "M":
            assert type(event["ts"]) is int
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert {type(value) for value in event["args"].values()} <= {int, float}
    assert set(threads) <= named
    for spans in threads.values():
        assert spans == sorted(spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def check_lives(run: Run) -> None:
    """A request's slices begin with its arrival and end with its last token; before its first chunk there is no gap."""
    for row in run.table.itertuples():
        spans = run.life(row.request_id)
        if row.status == "finished":
            assert (spans[0][1], spans[-1][2]) == (pytest.approx(row.arrival_s), pytest.approx(row.finish_s, abs=2e-6))
            assert sum(phase == "preempted" for phase, *_ in spans) <= row.num_preemptions
        if spans and spans[0][0] == "queued" and len(spans) > 1:
            assert spans[0][2] == spans[1][1]


def check_lanes(run: Run) -> None:
    """There are as many lanes as requests were alive at once."""
    if (run.table["status"] == "rejected").any():
        return  # a lane is free when the step is settled for which its request was rejected
    ends = run.table[["arrival_s", "finish_s"]]
    alive = [((ends["arrival_s"] <= at_s) & (at_s <= ends["finish_s"])).sum() for at_s in ends["arrival_s"]]
    assert len({event["tid"] for event in run.events if event["tid"] >= FIRST_LANE}) == max(alive)


@BOTH_MODES
def test_a_model_under_pressure(tmp_path, async_scheduling):
    """Through the front door, with requests that are preempted: the format, and the figures of the tables."""
    scenario = Scenario(**BUSY, async_scheduling=async_scheduling)
    result = simulate(scenario, busy_traffic(), timeline=tmp_path / "t.json.gz")
    events = read(tmp_path / "t.json.gz")
    check_format(events)
    spans = slices_of(events, REQUESTS)
    assert result.summary["preemptions"]["total"] == sum(event["cat"] == "preempted" for event in spans) > 0
    assert sum(event["args"].get("tokens", 0) for event in spans) == tokens_of_steps(events)
    assert {event["name"] for event in events if event["ph"] == "C"} == {"requests", "blocks", "bytes"}


def test_the_counters_are_those_of_the_table(tmp_path):
    """A counter holds until the next; the bytes are looked up as often as the recorder looks."""
    result = simulate(Scenario(**BUSY), busy_traffic(), timeline=tmp_path / "t.json")
    events = [event for event in read(tmp_path / "t.json") if event["ph"] == "C"]
    assert events == sorted(events, key=lambda event: event["ts"])
    last = {name: value for event in events for name, value in event["args"].items()}
    counted, rows = {}, []
    steps = result.steps[result.steps["end_s"] > result.steps["start_s"]]
    for start_s in steps["start_s"]:
        while events and events[0]["ts"] <= round(start_s * S):
            counted |= events.pop(0)["args"]
        rows.append([counted[name] for name in (*COUNTS, *BYTE_COLUMNS)])
    counted, table = np.array(rows), steps[[*COUNTS, *BYTE_COLUMNS]].to_numpy()
    assert np.isnan(table).any()
    assert (np.isnan(table) | (counted == table)).all()
    assert (last["running"], last["held_blocks"], last["readable_bytes"]) == (0, 0, 0)


# The file


def test_equal_runs_give_equal_bytes_and_plain_ones_the_same_text(tmp_path):
    files = [tmp_path / "a.json.gz", tmp_path / "sub" / "b.json.gz", tmp_path / "c.json"]
    for file in files:
        simulate(Scenario(**BUSY), busy_traffic(20), timeline=file)
    first, again, plain = (file.read_bytes() for file in files)
    assert (first == again, gzip.decompress(first)) == (True, plain)
    assert list(json.loads(plain)) == ["traceEvents", "displayTimeUnit"]


def test_a_timeline_changes_nothing_in_the_result(tmp_path):
    watched = simulate(Scenario(**BUSY), busy_traffic(), timeline=tmp_path / "t.json")
    assert watched.to_json() == simulate(Scenario(**BUSY), busy_traffic()).to_json()


def test_a_run_that_fails_leaves_nothing(tmp_path):
    def rows():
        yield from busy_traffic(20)
        raise RuntimeError("the trace ends badly")

    trace = Trace("broken", None, rows)
    with pytest.raises(RuntimeError, match="badly"):
        simulate(Scenario(**BUSY), trace, timeline=tmp_path / "t.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("t.txt", "--timeline: must end in .json.gz or .json, got "),
        ("t.gz", "--timeline: must end in .json.gz or .json, got "),
        ("there/t.json", "there/t.json cannot be written: "),
        ("folder.json", "folder.json cannot be written: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path, file, said):
    (tmp_path / "there").touch()
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ScenarioError, match=said.replace(".", r"\.")) as refused:
        simulate(Scenario(**BUSY), busy_traffic(1), timeline=tmp_path / file)
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.json", "there"]


def test_the_command_line_writes_and_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "simulate gemma-3-1b --gpu l4 --num-requests 3 --no-report --out run --timeline t.json.gz"
    monkeypatch.setattr(sys, "argv", ["kvplan", *words.split()])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert capsys.readouterr().out.endswith("\nt.json.gz\n")
    check_format(read(tmp_path / "t.json.gz"))
