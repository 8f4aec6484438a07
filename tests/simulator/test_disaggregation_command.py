"""Disaggregated fleets on the command line: what it takes, what it writes, and how it says no."""

import json

import pyarrow.parquet as pq
import pytest

from simulator import Scenario
from simulator.disaggregation_options import disaggregated_of
from simulator.fleet_options import FleetOptions
from simulator.link import Link
from simulator.router import router_name
from simulator.scenario import ScenarioError
from tests.simulator.test_cli import trace  # noqa: F401  a fixture

SCENARIO = Scenario(model="llama-3.1-8b", gpu="h100-80gb", max_num_seqs=8, seed=3)
SIMULATE = ("simulate", "gemma-3-1b", "--gpu", "l4")


def test_without_a_word_of_it_nothing_is_disaggregated():
    assert disaggregated_of(SCENARIO, FleetOptions(num_replicas=3)) is None


def test_numbers_make_equal_replicas_on_both_sides():
    options = FleetOptions(prefill_replicas=2, decode_replicas=1, router="least-loaded", link_gbps=100.0)
    prefill, decode, link = disaggregated_of(SCENARIO, options)
    assert (prefill.scenarios, decode.scenarios, link) == ([SCENARIO] * 2, [SCENARIO], Link(12.5e9, 1e-5))
    assert [router_name(servers.router) for servers in (prefill, decode)] == ["least-loaded"] * 2
    assert prefill.router is not decode.router


def test_replicas_with_roles_may_differ():
    options = FleetOptions(replicas=("role=prefill,gpu=h200,count=2", "role=decode", "role=decode,max_num_seqs=16"))
    prefill, decode, _ = disaggregated_of(SCENARIO, options)
    assert prefill.scenarios == [SCENARIO.model_copy(update={"gpu": "h200"})] * 2
    assert decode.scenarios == [SCENARIO, SCENARIO.model_copy(update={"max_num_seqs": 16})]


REFUSED = {
    "--prefill-replicas: needs --decode-replicas beside it": FleetOptions(prefill_replicas=1),
    "--decode-replicas: needs --prefill-replicas beside it": FleetOptions(decode_replicas=1),
    "--decode-replicas: must make 1 to 1,024 replicas, got 0": FleetOptions(prefill_replicas=1, decode_replicas=0),
    "--replicas: does not go with --prefill-replicas; say --replica role=prefill,gpu=h200,count=2 for each kind":
        FleetOptions(2, prefill_replicas=1, decode_replicas=1),
    "--replica: does not go with --prefill-replicas; say --replica role=prefill,gpu=h200,count=2 for each kind":
        FleetOptions(replicas=("gpu=h200",), prefill_replicas=1, decode_replicas=1),
    "--replica role=decode: must make 1 to 1,024 replicas, got 0": FleetOptions(replicas=("role=prefill",)),
    "--replica 'gpu=h200': role must have one, too": FleetOptions(replicas=("role=prefill", "gpu=h200")),
    "--replica 'role=both': role must be prefill or decode, got 'both'": FleetOptions(replicas=("role=both",)),
    "--replicas: does not go with --replica, which counts them itself (count=2)":
        FleetOptions(2, ("role=prefill", "role=decode")),
    "--link-gbps: nothing travels: add --prefill-replicas 1 --decode-replicas 1": FleetOptions(2, link_gbps=1.0),
    "--link-latency-s: nothing travels: add --prefill-replicas 1 --decode-replicas 1": FleetOptions(link_latency_s=1.0),
    "--link-gbps: must be a number of gigabits per second above 0, got 0.0":
        FleetOptions(prefill_replicas=1, decode_replicas=1, link_gbps=0.0),
    "--link-latency-s: must be a number of seconds of at least 0, got -1.0":
        FleetOptions(prefill_replicas=1, decode_replicas=1, link_latency_s=-1.0),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_a_mistake_is_one_line(message):
    with pytest.raises(ScenarioError) as refused:
        disaggregated_of(SCENARIO, REFUSED[message])
    assert str(refused.value) == message


def test_a_run_writes_its_folder(kvplan, trace, tmp_path):  # noqa: F811
    flags = ("--prefill-replicas", 2, "--decode-replicas", 1, "--link-gbps", 100, "--router", "least-loaded")
    done = kvplan(*SIMULATE, "--trace", trace, *flags, "--out", "here")
    assert (done.code, done.err) == (0, "")
    assert "Transferred" in done.out
    assert "(decode)" in done.out
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["scenario"]["fleet"] == {
        "num_replicas": 3, "prefill_replicas": 2, "decode_replicas": 1, "prefill_router": "least-loaded",
        "decode_router": "least-loaded", "router_staleness_s": 0.0, "link_bytes_per_s": 12.5e9, "link_latency_s": 1e-5,
    }  # fmt: skip
    assert [replica["role"] for replica in summary["replicas"]] == ["prefill", "prefill", "decode"]
    requests = pq.read_table(tmp_path / "here" / "requests.parquet")
    assert sum(requests.column("transferred_bytes").to_pylist()) == summary["transfers"]["bytes"] > 0
    assert set(requests.column("decode_replica").to_pylist()) == {2}
    report = (tmp_path / "here" / "report.html").read_text()
    assert "Where the time to the first token goes" in report


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--timeline", "t.json"), "--timeline: shows one server, so it does not go with several replicas"),
        (("--back-with", "cpu"), "--back-with: makes one server's pool, so it does not go with several replicas"),
    ],
)
def test_what_shows_one_server_does_not_go_with_several(kvplan, trace, tmp_path, flags, message):  # noqa: F811
    both = ("--prefill-replicas", 1, "--decode-replicas", 1)
    done = kvplan(*SIMULATE, "--trace", trace, *both, *flags, "--out", "here")
    assert (done.code, done.err) == (2, f"kvplan: {message}\n")
    assert not (tmp_path / "here").exists()


def test_requests_of_two_replicas_are_not_explained(kvplan, trace):  # noqa: F811
    kvplan(
        *SIMULATE, "--trace", trace, "--prefill-replicas", 1, "--decode-replicas", 1, "--no-report", "--out", "here"
    )  # fmt: skip
    done = kvplan("explain", "here", "1")
    assert (done.code, done.err) == (
        2,
        "kvplan: here is a run of prefill and decode replicas: kvplan explains requests that one replica serves only\n",
    )
