"""Fleets on the command line: what it takes, what it writes, and how it says no."""

import json

import pyarrow.parquet as pq
import pytest

from simulator import Scenario
from simulator.fleet_options import ROUTERS, FleetOptions, fleet_of
from simulator.router import router_name
from simulator.scenario import ScenarioError
from tests.simulator.test_cli import trace  # noqa: F401  a fixture

SCENARIO = Scenario(model="llama-3.1-8b", gpu="h100-80gb", max_num_seqs=8, seed=3)
SIMULATE = ("simulate", "gemma-3-1b", "--gpu", "l4")


def test_without_a_word_of_it_there_is_no_fleet():
    assert fleet_of(SCENARIO, FleetOptions()) is None


def test_equal_replicas_behind_round_robin():
    scenarios, router, staleness_s = fleet_of(SCENARIO, FleetOptions(num_replicas=3))
    assert (scenarios, router_name(router), staleness_s) == ([SCENARIO] * 3, "round-robin", 0.0)


def test_replicas_differ_in_what_they_say_and_are_as_many_as_they_say():
    options = FleetOptions(replicas=("count=2", "gpu=h200, tensor-parallel-size=2,max_num_seqs=16"))
    scenarios, *_ = fleet_of(SCENARIO, options)
    other = SCENARIO.model_copy(update={"gpu": "h200", "tensor_parallel_size": 2, "max_num_seqs": 16})
    assert scenarios == [SCENARIO, SCENARIO, other]


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_has_its_name(name):
    _, router, _ = fleet_of(SCENARIO, FleetOptions(num_replicas=2, router=name))
    assert router_name(router) == name


REFUSED = {
    "--replicas: must make 1 to 1,024 replicas, got 0": FleetOptions(0),
    "--replica: must make 1 to 1,024 replicas, got 2,000": FleetOptions(replicas=("count=2000",)),
    "--router: there is nothing to choose from: add --replicas 2 or --replica": FleetOptions(router="round-robin"),
    "--router: unknown router 'prefixaware'; did you mean 'prefix-aware'?": FleetOptions(2, router="prefixaware"),
    "--router-staleness-s: goes with --router prefix-aware only, not with round-robin": FleetOptions(
        2, staleness_s=1.0
    ),
    "--router-staleness-s: must be a number of seconds of at least 0, got -1.0": FleetOptions(
        2, router="prefix-aware", staleness_s=-1.0
    ),
    "--replicas: does not go with --replica, which counts them itself (count=2)": FleetOptions(
        2, replicas=("count=2",)
    ),
    "--replica: must be settings such as gpu=h200,tensor_parallel_size=2,count=2, got 'h200'": FleetOptions(
        replicas=("h200",)
    ),
    "--replica: unknown setting 'gpus'; did you mean 'gpu'?": FleetOptions(replicas=("gpus=h200",)),
    "--replica: seed is the same for all replicas: say --seed": FleetOptions(replicas=("seed=1",)),
    "--replica: gpu is said twice in 'gpu=l4,gpu=h200'": FleetOptions(replicas=("gpu=l4,gpu=h200",)),
    "--replica: count must be a whole number of at least 1, got '0'": FleetOptions(replicas=("count=0",)),
    "--replica 'watermark=2': --watermark: must be less than 1, got '2'": FleetOptions(replicas=("watermark=2",)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_mistake_is_one_line(message):
    with pytest.raises(ScenarioError) as refused:
        fleet_of(SCENARIO, REFUSED[message])
    assert str(refused.value) == message


def test_a_fleet_writes_its_run_folder(kvplan, trace, tmp_path):  # noqa: F811
    flags = ("--replica", "count=2", "--replica", "gpu=h100-80gb", "--router", "prefix-aware")
    done = kvplan(*SIMULATE, "--trace", trace, *flags, "--router-staleness-s", "2", "--out", "here")
    assert (done.code, done.err) == (0, "")
    assert "Replica 2" in done.out
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["scenario"]["fleet"] == {"num_replicas": 3, "router": "prefix-aware", "router_staleness_s": 2.0}
    assert [replica["scenario"]["gpu"] for replica in summary["replicas"]] == ["l4", "l4", "h100-80gb"]
    for table in ("requests", "steps"):
        assert "replica" in pq.read_table(tmp_path / "here" / f"{table}.parquet").column_names
    report = (tmp_path / "here" / "report.html").read_text()
    assert "Load and hit rate of each replica" in report
    assert report.count("<figure>") == 2  # and the latencies of all requests: what overlaps is not drawn as one


def test_one_replica_is_a_single_server_to_the_byte(kvplan, trace, tmp_path):  # noqa: F811
    for name, flags in (("plain", ()), ("one", ("--replicas", "1"))):
        kvplan(*SIMULATE, "--trace", trace, *flags, "--out", name)
    files = ("summary.json", "requests.parquet", "steps.parquet", "report.html")
    assert all((tmp_path / "plain" / name).read_bytes() == (tmp_path / "one" / name).read_bytes() for name in files)


def test_a_fleet_has_no_timeline(kvplan, trace, tmp_path):  # noqa: F811
    done = kvplan(*SIMULATE, "--trace", trace, "--replicas", 2, "--timeline", "t.json", "--out", "here")
    assert (done.code, done.err) == (
        2,
        "kvplan: --timeline: shows one server, so it does not go with several replicas\n",
    )
    assert not (tmp_path / "here").exists()


def test_a_request_of_a_fleet_is_explained_also_where_its_trace_has_moved(kvplan, trace):  # noqa: F811
    kvplan(*SIMULATE, "--trace", trace, "--replicas", 2, "--no-report", "--out", "here")
    trace.rename("moved.jsonl")
    assert kvplan("explain", "here", "2").code == 2
    done = kvplan("explain", "here", "2", "--trace", "moved.jsonl")
    assert (done.code, done.err) == (0, "")
    assert "The router sends it to replica 1." in done.out
