"""Explaining a request of a fleet: the replay of all replicas is the run, and the story is of the right one."""

import json

import pytest

from simulator import Scenario, ScenarioError, simulate
from simulator.explain_run import explain_run
from simulator.fleet import simulate_fleet
from simulator.router import (
    LeastLoaded,
    OneQueue,
    PowerOfTwoChoices,
    PrefixAware,
    RoundRobin,
    SessionAffinity,
)
from simulator.run_folder import write_run
from simulator.story_words import sections
from tests.simulator.fleets import SMALL, Scripted, row, trace_of

SCENARIO = Scenario(
    model="gemma-3-1b", step_time_s=0.02, num_gpu_blocks_override=2000, max_model_len=4096, num_requests=80,
    rate_scale=60, max_num_seqs=16, seed=3,
)  # fmt: skip
"""Pools so small that requests wait, lose blocks and are preempted."""
LARGER = SCENARIO.model_copy(update={"num_gpu_blocks_override": 2500})
FLEETS = {
    "round robin": (RoundRobin, 0.0),
    "least loaded": (LeastLoaded, 0.0),
    "two choices": (lambda: PowerOfTwoChoices(3), 0.0),
    "sessions": (SessionAffinity, 0.0),
    "prefixes": (PrefixAware, 0.0),
    "prefixes of a while ago": (PrefixAware, 2.0),
    "one queue": (OneQueue, 0.0),
}


@pytest.fixture(scope="module")
def fleet_folders(tmp_path_factory):
    """Runs of three replicas, of which one is larger, by their router: (folder, its requests)."""
    found = {}
    for name, (new_router, staleness_s) in FLEETS.items():
        result = simulate_fleet([SCENARIO, LARGER, SCENARIO], new_router(), staleness_s)
        folder = write_run(result, tmp_path_factory.mktemp("fleet") / "run", with_report=False)
        found[name] = folder, result.requests
    return found


@pytest.mark.parametrize("name", FLEETS)
def test_of_each_replica_the_last_request_comes_out_again(fleet_folders, name):
    """Until it ends all replicas have been replayed; and so does the request that was preempted most."""
    folder, requests = fleet_folders[name]
    last = [of_one["request_id"].iloc[-1] for _, of_one in requests.groupby("replica")]
    most_preempted = requests.loc[requests["num_preemptions"].idxmax(), "request_id"]
    recorded = requests.set_index("request_id")[["replica", "finish_s", "cached_tokens", "num_preemptions"]]
    told = {each: explain_run(folder, each) for each in {*last, most_preempted}}
    assert {
        each: (story.replica, story.end_s, story.cached_tokens, story.num_preemptions) for each, story in told.items()
    } == {each: tuple(recorded.loc[each]) for each in told}


def test_the_runs_are_worth_a_replay(fleet_folders):
    """All three replicas serve, and somebody is preempted, hits, or waits before the router."""
    _, requests = fleet_folders["prefixes"]
    assert requests["replica"].nunique() == 3
    assert requests["num_preemptions"].max() > 0
    assert requests["cached_tokens"].max() > 0


def serve(folder, *rows, router, num_replicas=2):
    write_run(simulate_fleet([SMALL] * num_replicas, router, trace=trace_of(*rows)), folder, with_report=False)
    return folder


def test_who_waits_before_all_replicas_is_told_so(tmp_path):
    """Four run on each of two replicas, the ninth waits for one of them to end; it decodes 4 tokens, 1 s each."""
    rows = [row(str(nth)) for nth in range(9)]
    folder = serve(tmp_path / "run", *rows, router=OneQueue())
    story = explain_run(folder, "8", trace_of(*rows))
    (wait,) = story.attempts[0].waits
    assert (wait.kind, wait.start_s, wait.end_s, story.sent_s, story.end_s) == ("router", 0.0, 4.0, 4.0, 8.0)
    beginning, queue, *_ = sections(story)
    assert beginning.lines[1] == ("4.000 s", "The router sends it to replica 0.")
    assert queue.lines == [("for 4 s", "All replicas ran --max-num-seqs requests, so the router let it wait.")]


def test_a_hit_is_of_the_replica_that_had_the_prefix(tmp_path):
    """The first request leaves its prompt on one replica; the second of them misses it on the other."""
    rows = [row("a", 0.0, 64, ids=(1, 2, 3)), row("b", 20.0, 64, ids=(1, 2, 3)), row("c", 40.0, 64, ids=(1, 2, 3))]
    folder = serve(tmp_path / "run", *rows, router=RoundRobin())
    stories = [explain_run(folder, name, trace_of(*rows)) for name in "abc"]
    assert [(story.replica, story.attempts[0].admission.hit_tokens) for story in stories] == [(0, 0), (1, 0), (0, 48)]


def test_who_is_turned_away_at_a_replica_is_explained(tmp_path):
    rows = [row("a"), row("long", prompt=300)]
    folder = serve(tmp_path / "run", *rows, router=RoundRobin())
    story = explain_run(folder, "long", trace_of(*rows))
    assert (story.replica, story.status, story.attempts) == (1, "rejected", ())


def test_a_fleet_of_one_tells_what_its_server_tells(tmp_path):
    alone = write_run(simulate(SCENARIO), tmp_path / "alone", with_report=False)
    fleet = write_run(simulate_fleet([SCENARIO], RoundRobin()), tmp_path / "fleet", with_report=False)
    story = explain_run(alone, "40").to_json()
    assert explain_run(fleet, "40").to_json() == {**story, "replica": 0}


# ------------------------------------------------------------------------------------- what cannot be explained


def test_a_router_that_kvplan_does_not_have(tmp_path):
    folder = serve(tmp_path / "run", row("a"), router=Scripted(0))
    with pytest.raises(ScenarioError, match="is the run of a fleet that cannot be replayed: --router: unknown router"):
        explain_run(folder, "a", trace_of(row("a")))


def test_a_fleet_that_would_be_another_one_today(fleet_folders, tmp_path):
    folder, requests = fleet_folders["round robin"]
    summary = json.loads((folder / "summary.json").read_text())
    summary["replicas"][1]["capacity"]["num_blocks"] += 1
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "requests.parquet").write_bytes((folder / "requests.parquet").read_bytes())
    of_replica = requests.loc[requests["replica"] == 1, "request_id"]
    with pytest.raises(ScenarioError, match=r"num_blocks was 2501 and is 2500 today, so kvplan has changed since$"):
        explain_run(tmp_path, of_replica.iloc[0])


def test_a_fleet_with_failures_is_refused_in_one_line(kvplan):
    small = ("--gpu", "l4", "--num-requests", "5", "--no-report", "--out", "run")
    assert kvplan("simulate", "gemma-3-1b", *small, "--replicas", "2", "--outage", "replica=0,at=1,for=1").err == ""
    done = kvplan("explain", "run", "1")
    assert (done.code, done.err) == (
        2,
        "kvplan: run is of a fleet whose replicas come and go: kvplan explains requests of those that stay up\n",
    )
