"""Failures, drains and scaling on the command line: what it takes, what it writes, and how it says no."""

import json

import pyarrow.parquet as pq
import pytest

from simulator.autoscaling import Autoscaling
from simulator.fleet_options import FleetOptions, fleet_of
from simulator.operations import MOST_RETRIES, QUIET, Operations
from simulator.operations_options import OperationOptions, operations_of
from simulator.outages import Drain, Outage, RandomOutages
from simulator.scenario import ScenarioError
from tests.simulator.test_cli import trace  # noqa: F401  a fixture
from tests.simulator.test_fleet_command import SCENARIO

SIMULATE = ("simulate", "gemma-3-1b", "--gpu", "l4")


def test_without_a_word_of_it_nothing_happens():
    assert operations_of(OperationOptions(), 2, seed=0) == QUIET


def test_everything_may_be_said():
    options = OperationOptions(
        outages=("replica=1,at=600,for=120", "at=1e3, replica=0"),
        random_outages="mtbf=3600,mttr=120.5",
        on_failure="retry=3",
        drains=("replica=1,at=5,for=300",),
        cold_start_s=60.0,
        autoscale="kv_usage=0.7,min=2,max=4,cooldown=90,every=10",
    )
    assert operations_of(options, 2, seed=7) == Operations(
        outages=(Outage(1, 600.0, 120.0), Outage(0, 1000.0)),
        random_outages=RandomOutages(3600.0, 120.5, seed=7),
        drains=(Drain(1, 5.0, 300.0),),
        autoscaling=Autoscaling(None, 0.7, 2, 4, 10.0, 90.0),
        cold_start_s=60.0,
        max_retries=3,
    )


@pytest.mark.parametrize(("said", "max_retries"), [(None, MOST_RETRIES), ("retry", MOST_RETRIES), ("lose", 0)])
def test_what_becomes_of_requests_is_retry_unless_they_are_to_be_lost(said, max_retries):
    options = OperationOptions(outages=("replica=0,at=1",), on_failure=said)
    assert operations_of(options, 1, seed=0).max_retries == max_retries


def test_the_words_of_operations_are_those_that_make_them():
    """What a summary says can be said to the command line again."""
    texts = ("replica=1,at=600,for=120", "replica=0,at=3.5")
    made = operations_of(OperationOptions(texts, "mtbf=3600,mttr=120", None, texts, None), 2, seed=0).to_json()
    assert (tuple(made["outages"]), tuple(made["drains"]), made["random_outages"]) == (
        texts, texts, "mtbf=3600,mttr=120",
    )  # fmt: skip


def test_a_single_replica_that_may_fail_is_a_fleet():
    scenarios, *_ = fleet_of(SCENARIO, FleetOptions(operations=OperationOptions(outages=("replica=0,at=1",))))
    assert scenarios == [SCENARIO]


ONE = ("replica=0,at=1",)
REFUSED = {
    "--outage: must be of the form replica=1,at=600,for=120, got '600'": OperationOptions(("600",)),
    "--outage: needs at, as in replica=1,at=600,for=120, got 'replica=1'": OperationOptions(("replica=1",)),
    "--outage: no replica 2: there are replicas 0 to 1": OperationOptions(("replica=2,at=1",)),
    "--outage: unknown setting 'replicas'; did you mean 'replica'?": OperationOptions(("replicas=0,at=1",)),
    "--outage: at must be a number of seconds of at least 0, got -1": OperationOptions(("replica=0,at=-1",)),
    "--outage: at must be a number, got 'noon'": OperationOptions(("replica=0,at=noon",)),
    "--outage: replica must be a whole number of at least 0, got '-1'": OperationOptions(("replica=-1,at=1",)),
    "--outage: at is said twice in 'replica=0,at=1,at=2'": OperationOptions(("replica=0,at=1,at=2",)),
    "--drain: for must be a number of seconds of at least 0, got nan": OperationOptions(
        drains=("replica=0,at=1,for=nan",)
    ),
    "--random-outages: needs mtbf and mttr, as in mtbf=3600,mttr=120, got 'mtbf=3600'": OperationOptions(
        random_outages="mtbf=3600"
    ),
    "--random-outages: mtbf must be a number of seconds above 0, got 0": OperationOptions(
        random_outages="mtbf=0,mttr=1"
    ),
    "--random-outages: unknown setting 'mtfb'; did you mean 'mtbf'?": OperationOptions(random_outages="mtfb=0,mttr=1"),
    "--on-failure: unknown policy 'loose'; did you mean 'lose'?": OperationOptions(ONE, on_failure="loose"),
    "--on-failure: unknown policy '3'; known: retry, retry=3 (at most so often), lose": OperationOptions(
        ONE, on_failure="3"
    ),
    "--on-failure: retry must be a whole number of at least 0, got 'x'": OperationOptions(ONE, on_failure="retry=x"),
    "--on-failure: nothing fails: add --outage or --random-outages": OperationOptions(on_failure="lose"),
    "--cold-start-s: must be a number of seconds of at least 0, got -1": OperationOptions(ONE, cold_start_s=-1.0),
    "--cold-start-s: no replica starts: add --outage, --random-outages, --drain or --autoscale": OperationOptions(
        cold_start_s=5.0
    ),
    "--autoscale: needs one target, running or kv-usage, and not both": OperationOptions(autoscale="max=4"),
    "--autoscale: the fleet starts with 2, which is not between min=3 and max=8: say --replicas 3": OperationOptions(
        autoscale="running=32,min=3"
    ),
    "--autoscale: max must be at most 1,024, got 2,000": OperationOptions(autoscale="running=32,max=2000"),
    "--autoscale: unknown setting 'cool-down'; did you mean 'cooldown'?": OperationOptions(
        autoscale="running=32,cool-down=3"
    ),
    "--autoscale: kv-usage must be between 0 and 1, got 70": OperationOptions(autoscale="kv-usage=70"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_mistake_is_one_line(message):
    with pytest.raises(ScenarioError) as refused:
        operations_of(REFUSED[message], 2, seed=0)
    assert str(refused.value) == message


def test_a_replica_that_may_be_added_may_fail():
    options = OperationOptions(("replica=3,at=1",), autoscale="running=32,max=4")
    assert operations_of(options, 1, seed=0).outages == (Outage(3, 1.0),)


def test_a_mistake_is_said_before_anything_is_written(kvplan, trace, tmp_path):  # noqa: F811
    done = kvplan(*SIMULATE, "--trace", trace, "--outage", "replica=1,at=3", "--out", "here")
    assert (done.code, done.err) == (2, "kvplan: --outage: no replica 1: there is replica 0 only\n")
    assert not (tmp_path / "here").exists()


def test_a_run_with_failures_writes_what_became_of_replicas(kvplan, trace, tmp_path):  # noqa: F811
    flags = ("--replicas", 2, "--outage", "replica=1,at=1,for=1", "--cold-start-s", 0.5, "--on-failure", "lose")
    done = kvplan(*SIMULATE, "--trace", trace, *flags, "--out", "here")
    assert (done.code, done.err) == (0, "")
    assert "Replicas up" in done.out
    assert "Requests lost" in done.out
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["scenario"]["fleet"]["outages"] == ["replica=1,at=1,for=1"]
    assert summary["operations"]["failures"] == 1
    assert summary["requests"]["lost"] == summary["replicas"][1]["requests"]["lost"] > 0
    states = pq.read_table(tmp_path / "here" / "states.parquet").to_pydict()
    assert [state for number, state in zip(states["replica"], states["state"], strict=True) if number] == [
        "up", "failed", "booting", "up",
    ]  # fmt: skip
    requests = pq.read_table(tmp_path / "here" / "requests.parquet").to_pydict()
    assert requests["status"].count("lost") == summary["requests"]["lost"]
    report = (tmp_path / "here" / "report.html").read_text()
    assert "Replicas that were up, and what each was when" in report
    assert "It held, but lost requests" in report
    assert "Lost: the replica where it was failed." in report


def test_a_fleet_that_scales_starts_with_one(kvplan):
    traffic = ("--request-rate", 20, "--input-len", 500, "--output-len", 200, "--num-requests", 200)
    rule = ("--autoscale", "running=5,every=1,cooldown=1")
    summary = json.loads(kvplan(*SIMULATE, *traffic, *rule, "--json", "--out", "here").out)
    assert len(summary["replicas"]) > 1
    assert summary["scenario"]["fleet"]["num_replicas"] == 1
    assert summary["requests"]["lost"] == 0
