"""Servers and fleets with host memory, from the scenario to the summary."""

import json

import numpy as np
import pytest
import simpy

from simulator import Scenario, ScenarioError, simulate
from simulator.arrival import Arrival
from simulator.deployment import deploy
from simulator.explain import explain
from simulator.fleet import Fleet, simulate_fleet
from simulator.replica import wait_until
from simulator.router import RoundRobin
from simulator.summary_table import summary_lines
from tests.simulator.conftest import Outcome
from workloads import Arrivals, Lengths, SharedPrefixes, Traffic, synthesize

TRACE = synthesize(
    Traffic(
        Arrivals.poisson(0.2),
        prompts=Lengths.fixed(40),
        outputs=Lengths.fixed(4),
        prefixes=SharedPrefixes(num_prefixes=12, lengths=Lengths.fixed(2000)),
    ),
    160,
)
"""160 requests, each about one of twelve documents."""
SMALL = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "max_model_len": 4096, "num_gpu_blocks_override": 400}


def reused(result) -> int:
    """Prompt tokens that were not computed."""
    columns = dict(result.tables["requests"].items())
    return sum(int(columns[name].sum()) for name in ("cached_tokens", "loaded_tokens") if name in columns)


def test_capacity_0_is_no_tier_to_the_byte():
    without, with_none = (simulate(Scenario(**SMALL, kv_offloading_size=size), TRACE) for size in (None, 0))
    assert {**with_none.to_json(), "scenario": None} == {**without.to_json(), "scenario": None}
    for name, table in without.tables.items():
        columns = dict(table.items())
        others = dict(with_none.tables[name].items())
        assert columns.keys() == others.keys()
        for column, values in columns.items():
            np.testing.assert_array_equal(values, others[column])


FEW_BLOCKS = {"llama-3.1-8b": 400, "gemma-3-27b": 2000, "qwen3-next-80b-a3b": 30}


@pytest.mark.parametrize("model", FEW_BLOCKS)
def test_a_tier_without_limits_is_as_good_as_a_pool_without_limits(model):
    """Requests come one by one, so that times make no difference."""
    server = {**SMALL, "model": model, "tensor_parallel_size": 2, "max_num_batched_tokens": 2048}
    tier = simulate(
        Scenario(
            **{**server, "num_gpu_blocks_override": FEW_BLOCKS[model]},
            kv_offloading_size=1e6,
            kv_offloading_bandwidth=10**18,
        ),
        TRACE,
    )
    pool = simulate(Scenario(**{**server, "num_gpu_blocks_override": 500_000}), TRACE)
    assert reused(tier) == reused(pool)


def test_a_run_says_what_its_host_tier_did():
    result = simulate(Scenario(**SMALL, kv_offloading_size=50), TRACE)
    host, requests = result.summary["host_tier"], result.requests
    assert host["host_hit_rate"] == pytest.approx(requests.loaded_tokens.sum() / requests.prompt_tokens.sum(), rel=1e-5)
    assert host["device_hit_rate"] == result.summary["prefix_cache_hit_rate"]
    assert host["fetched_tokens"] == requests.loaded_tokens.sum()
    assert all(0 < share < 1 for share in host["link_utilization"].values())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"kv_offloading_bandwidth": "50GB/s"}, "--kv-offloading-bandwidth: goes with --kv-offloading-size only"),
        (
            {"gpu": None, "step_time_s": 0.1, "kv_offloading_size": 10},
            "--kv-offloading-bandwidth: is needed, for --gpu is not given: say 50GB for 50 GB/s",
        ),
        (
            {"gpu": "gaudi-3", "kv_offloading_size": 10},
            "--kv-offloading-bandwidth: is needed, for the host link of gaudi-3 is not known: say 50GB for 50 GB/s",
        ),
        (
            {"kv_offloading_size": 10, "enable_prefix_caching": False},
            "--kv-offloading-size: needs prefix caching, which is off: nothing would be found again",
        ),
        (
            {"kv_offloading_size": 10, "semantics": "document"},
            "--kv-offloading-size: knows vLLM's pool only, not that of this grouping or semantics",
        ),
        ({"kv_offloading_size": 10, "back_with": "cpu"}, "--back-with: does not go with --kv-offloading-size yet"),
    ],
)
def test_what_does_not_go_together_is_one_line(settings, line):
    with pytest.raises(ValueError, match=r"^--") as mistake:
        simulate(Scenario(**{**SMALL, **settings}), TRACE)
    assert str(mistake.value) == line


@pytest.mark.parametrize(("text", "rate"), [("50GB/s", 50 * 10**9), ("50GBps", 50 * 10**9), ("1.5e9", 1_500_000_000)])
def test_a_bandwidth_is_bytes_a_second(text, rate):
    assert Scenario(model="llama-3.1-8b", kv_offloading_bandwidth=text).kv_offloading_bandwidth == rate


def test_a_bandwidth_without_a_number_is_refused():
    with pytest.raises(ScenarioError, match="--kv-offloading-bandwidth: must be a number of bytes"):
        Scenario(model="llama-3.1-8b", kv_offloading_bandwidth="fast")


# ------------------------------------------------------------------------------------------------ fleets


def test_each_replica_has_its_own_host_memory_or_none():
    """The fleet's figures are those of both together; where there is no tier nothing was loaded."""
    result = simulate_fleet([Scenario(**SMALL, kv_offloading_size=10), Scenario(**SMALL)], RoundRobin(), trace=TRACE)
    loaded = result.requests.groupby("replica").loaded_tokens.sum()
    assert (loaded[0] > 0, loaded[1]) == (True, 0)
    with_tier, without = result.summary["replicas"]
    assert "host_tier" not in without
    assert result.summary["host_tier"]["bytes_in"] == with_tier["host_tier"]["bytes_in"]
    assert result.summary["host_tier"]["fetched_tokens"] == loaded[0]


@pytest.mark.parametrize("staleness_s", [0.0, 5.0])
def test_a_router_hears_of_both_tiers(staleness_s):
    """After three others the first document has left the pool: a router knows that it is on the host."""
    fleet = Fleet(simpy.Environment(), [deploy(Scenario(**SMALL, kv_offloading_size=10))], RoundRobin(), staleness_s)
    env, (replica,) = fleet._env, fleet.replicas
    rows = list(TRACE)
    by_document = {row.prefix_ids[0]: row for row in rows}
    first, *others = [by_document[each] for each in list(by_document)[:4]]
    heard = []

    def arrive():
        for serial, row in enumerate((first, *others)):
            fleet.submit(Arrival(row, TRACE.prefix_block_tokens, serial))
            yield wait_until(env, env.now + 10.0)
        probe = Arrival(first, TRACE.prefix_block_tokens, 99)
        manager = replica.scheduler.manager
        heard.append((manager.peek_hit(probe.keys_for(manager), first.prompt_tokens), replica.held_tokens(probe)))

    env.process(arrive())
    env.run()
    ((on_device, known),) = heard
    assert on_device < 2000 <= known


# ------------------------------------------------------------------------------------------ what is printed


def test_the_summary_has_lines_for_it_only_with_a_tier():
    with_tier, without = (simulate(Scenario(**SMALL, kv_offloading_size=size), TRACE) for size in (10, None))
    lines = [dict(summary_lines(result.summary)) for result in (with_tier, without)]
    more = lines[0].keys() - lines[1].keys()
    assert {name for name in more if "ost" in name} == {
        "Host tier", "Host tier hit rate", "Copied to the host", "Fetched from the host"
    }  # fmt: skip
    assert "of 10 GiB" in lines[0]["Host tier"]


def test_explain_does_not_know_it_yet():
    with pytest.raises(ScenarioError, match="explain: does not know host tiers yet"):
        explain(Scenario(**SMALL, kv_offloading_size=10), "0", TRACE)


def test_the_command_has_vllms_flag(kvplan):
    """A rate as a person writes it; what it comes to stands in the summary, and the run is the same again."""
    flags = "--num-gpu-blocks-override 600 --max-model-len 4096 --num-requests 50 --gpu h100-80gb --no-report --json"
    command = f"simulate llama-3.1-8b {flags} --kv-offloading-size 2.5 --kv-offloading-bandwidth 25GB/s".split()
    outcomes: list[Outcome] = [kvplan(*command, "--out", name) for name in ("a", "b")]
    summary = json.loads(outcomes[0].out)
    assert outcomes[0].out == outcomes[1].out
    assert summary["scenario"]["kv_offloading_bandwidth"] == 25 * 10**9
    assert summary["host_tier"]["capacity_bytes"] == 2.5 * (1 << 30)
