"""Prompts on some replicas, outputs on others: what travels, who waits, and what always holds."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.errors import InvariantError
from kvcache.grouping import group_layers
from kvcache.layout import KVCacheLayout
from simulator import Scenario, simulate
from simulator.arrival import Arrival
from simulator.deployment import Deployment, deploy
from simulator.disaggregation import Disaggregation, Servers, simulate_disaggregated
from simulator.disaggregation_checks import check_disaggregation, check_under_way
from simulator.link import Link
from simulator.replica import wait_until
from simulator.router import LeastLoaded, PowerOfTwoChoices, PrefixAware, RoundRobin
from simulator.scenario import ScenarioError
from tests.kvcache.pools import chunked, full, mamba, sliding
from tests.simulator.fleets import row, trace_of

FAST = Link(1e12, 0.0)
STEP_S = 1.0


def server(model="llama-3.1-8b", **settings) -> Scenario:
    usual = {"step_time_s": STEP_S, "num_gpu_blocks_override": 400, "max_model_len": 2048, "async_scheduling": False}
    return Scenario(model=model, **{**usual, **settings})


def run(rows, prefill, decode, link=FAST, routers=(RoundRobin, RoundRobin)):
    """A run, by request."""
    (before, behind) = routers
    result = simulate_disaggregated(
        Servers(prefill, before()), Servers(decode, behind()), link, trace=trace_of(*rows)
    )  # fmt: skip
    return result, result.requests.set_index("request_id")


# A request's way


def test_a_request_is_computed_here_and_generated_there():
    """A step for the prompt, five seconds for 16 blocks and the latency, then a step for each of four tokens."""
    kib = 16 * 128  # of a block of 16 tokens: 128 KiB a token
    link = Link(bandwidth_bytes_per_s=4 * kib * 1024, latency_s=1.0)
    _, requests = run([row("a", prompt=256)], [server()], [server()], link)
    times = ["prefilled_s", "blocks_taken_s", "transfer_start_s", "transfer_end_s", "first_token_s", "finish_s"]
    assert requests.loc["a", times].tolist() == [1.0, 1.0, 1.0, 6.0, 7.0, 10.0]


def test_the_user_waits_for_the_decode_replica_to_get_the_first_token():
    result, _ = run([row("a", prompt=256)], [server()], [server()], Link(1e12, 20.0))
    assert result.summary["ttft_s"]["mean"] == pytest.approx(22.0, abs=0.001)


def test_blocks_are_free_at_the_prefill_replica_once_they_were_read():
    """Sixteen blocks are there, each prompt needs ten: the second waits until the first has been read, at 21 s."""
    small = server(num_gpu_blocks_override=17, max_model_len=160)
    rows = [row("a", prompt=150), row("b", prompt=150)]
    _, requests = run(rows, [small], [server()], Link(1e12, 20.0))
    assert requests["prefilled_s"].tolist() == pytest.approx([1.0, 22.0], abs=0.001)


def test_a_slow_decode_replica_holds_up_the_prefill_replica():
    """One request at a time is generated for a hundred steps each, so prompts wait and their blocks are held."""
    rows = [row(str(number), prompt=150, output=100) for number in range(6)]
    slow = server(max_num_seqs=1, num_gpu_blocks_override=18, max_model_len=260)
    _, requests = run(rows, [server(num_gpu_blocks_override=22, max_model_len=260)], [slow])
    assert requests["status"].tolist() == ["finished"] * 6
    assert requests["prefilled_s"].max() > 300.0


def test_transfers_to_one_replica_come_one_after_the_other():
    """Ten seconds each: two prompts, done at once on two replicas, reach the decode replica after 11 and 21 s."""
    link = Link(bandwidth_bytes_per_s=16 * 128 * 1024, latency_s=0.0)
    rows = [row("a", prompt=160), row("b", prompt=160)]
    _, requests = run(rows, [server()] * 2, [server()], link)
    assert sorted(requests["transfer_end_s"]) == [11.0, 21.0]
    assert (requests["transfer_start_s"] - requests["blocks_taken_s"]).tolist() == [0.0, 10.0]


def test_transfers_between_other_replicas_overlap():
    link = Link(bandwidth_bytes_per_s=16 * 128 * 1024, latency_s=0.0)
    rows = [row("a", prompt=160), row("b", prompt=160)]
    _, requests = run(rows, [server()] * 2, [server()] * 2, link)
    assert requests["transfer_end_s"].tolist() == [11.0, 11.0]


def test_a_prefix_that_the_decode_replica_holds_does_not_travel():
    """Of the second prompt's 12 blocks, ten were left behind by the first."""
    rows = [row("a", prompt=160, ids=range(10)), row("b", at_s=50.0, prompt=190, ids=range(10))]
    _, requests = run(rows, [server()], [server()])
    block = 16 * 128 * 1024
    assert requests["transferred_bytes"].tolist() == [10 * block, 2 * block]
    assert requests["decode_cached_tokens"].tolist() == [0, 160]


def test_a_prompt_that_the_decode_replica_holds_whole_does_not_travel():
    """A state cannot be rewound, so a prompt but its last token is offered: all of that was left behind."""
    states = server("jamba-v0.1", block_size=16)
    rows = [row("a", prompt=161, ids=range(10)), row("b", at_s=50.0, prompt=161, ids=range(10))]
    result, requests = run(rows, [states], [states])
    assert requests["transferred_bytes"].tolist()[1] == 0
    assert np.isnan(requests["transfer_end_s"].tolist()[1])
    assert result.summary["transfers"]["requests"] == 1


def test_the_prefill_replica_keeps_prefixes_for_later_prompts():
    rows = [row("a", prompt=160, ids=range(10)), row("b", at_s=50.0, prompt=190, ids=range(10))]
    _, requests = run(rows, [server()], [server()])
    assert requests["cached_tokens"].tolist() == [0, 160]


def test_a_request_longer_than_the_decode_replica_serves_is_turned_away_there():
    result, requests = run([row("a", prompt=150, output=200)], [server()], [server(max_model_len=256)])
    assert requests.loc["a", "status"] == "rejected"
    assert requests.loc["a", "reason"] == "prompt and output are longer than max_model_len 256"
    assert result.summary["requests"]["rejected"] == 1


def test_a_prompt_longer_than_the_prefill_replica_serves_is_turned_away_at_the_door():
    _, requests = run([row("a", prompt=300)], [server(max_model_len=256)], [server()])
    assert requests.loc["a", ["status", "decode_replica"]].tolist() == ["rejected", -1]


def test_routers_choose_on_both_sides():
    rows = [row(str(number), at_s=float(number), prompt=64) for number in range(6)]
    _, requests = run(rows, [server()] * 2, [server()] * 3)
    assert requests["prefill_replica"].tolist() == [0, 1, 0, 1, 0, 1]
    assert requests["decode_replica"].tolist() == [2, 3, 4, 2, 3, 4]


def test_a_router_behind_sees_what_decode_replicas_hold():
    rows = [row(str(number), at_s=20.0 * number, prompt=170, ids=range(10)) for number in range(4)]
    _, requests = run(rows, [server()], [server()] * 3, routers=(RoundRobin, PrefixAware))
    assert requests["decode_replica"].nunique() == 1


def test_hardware_may_differ():
    """More ranks for the outputs: heads are split otherwise, and the same bytes travel in all."""
    prefill = Scenario(model="llama-3.1-8b", gpu="h100-80gb", max_model_len=8192)
    decode = Scenario(model="llama-3.1-8b", gpu="h200", tensor_parallel_size=2, max_model_len=8192)
    _, requests = run([row("a", prompt=160)], [prefill], [decode])
    assert requests.loc["a", "transferred_bytes"] == 160 * 128 * 1024


REFUSED = {
    "serve one model": [server(), server("gemma-3-1b", num_gpu_blocks_override=1500)],
    r"keep blocks alike .*: blocks of 16 tokens in auto and blocks of 32 tokens in auto differ": [
        server(), server(block_size=32),
    ],
    r"blocks of 16 tokens in auto and blocks of 16 tokens in fp8 differ": [server(), server(kv_cache_dtype="fp8")],
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_replicas_that_cannot_exchange_blocks_are_refused(message):
    prefill, decode = REFUSED[message]
    with pytest.raises(ScenarioError, match=message):
        run([row("a")], [prefill], [decode])


def test_both_sides_are_needed():
    with pytest.raises(ValueError, match="a prefill replica and a decode replica at least"):
        run([row("a")], [server()], [])


@pytest.mark.parametrize(
    ("bandwidth", "latency_s"), [(0.0, 0.0), (float("nan"), 0.0), (1e9, -1.0), (1e9, float("inf"))]
)
def test_a_link_is_a_positive_bandwidth_and_a_latency(bandwidth, latency_s):
    with pytest.raises(ValueError, match="must be a number of"):
        Link(bandwidth, latency_s)


# What comes out


def test_where_time_went_adds_up():
    rows = [row(str(number), at_s=0.3 * number, prompt=100 + 31 * number, output=20) for number in range(12)]
    result, _ = run(rows, [server(num_gpu_blocks_override=140)], [server(max_num_seqs=3)], Link(8e6, 0.5))
    stages = result.summary["stages_s"]
    assert sum(stages.values()) == pytest.approx(result.summary["e2e_s"]["mean"], rel=1e-4)
    assert min(stages[name] for name in ("prefill_queue", "link_queue", "transfer", "decode")) > 0.1


def test_a_summary_says_what_travelled():
    rows = [row(str(number), at_s=30.0 * number, prompt=160, output=5) for number in range(4)]
    link = Link(bandwidth_bytes_per_s=16 * 128 * 1024, latency_s=0.5)
    result, _ = run(rows, [server()] * 2, [server()], link)
    transfers = result.summary["transfers"]
    assert (transfers["requests"], transfers["bytes"]) == (4, 4 * 160 * 128 * 1024)
    assert transfers["duration_s"]["p99"] == 10.5
    span_s = result.summary["makespan_s"]
    assert transfers["link_utilization_in"] == [pytest.approx(40 / span_s, rel=1e-5)]
    assert sum(transfers["link_utilization_out"]) == pytest.approx(40 / span_s, rel=1e-5)


def test_a_window_that_travels_alone_leaves_the_run_as_it_would_be_in_one_place():
    """With a link that costs nothing, outputs come as from one server whose prompts were cached but a token."""
    rows = [row("a", prompt=160, output=30)]
    _, requests = run(rows, [server()], [server()], Link(1e18))
    alone = simulate(server(), trace_of(*rows)).requests.set_index("request_id")
    took_s = requests.loc["a", "finish_s"] - requests.loc["a", "prefilled_s"]
    assert took_s == pytest.approx(alone.loc["a", "finish_s"] - alone.loc["a", "arrival_s"])


def test_equal_runs_are_equal():
    rows = [row(str(number), at_s=0.3 * number, prompt=100 + 31 * number, output=20) for number in range(12)]
    first, second = (
        run(rows, [server()] * 2, [server()] * 2, Link(3e6, 0.5), (PowerOfTwoChoices, LeastLoaded))[0] for _ in range(2)
    )
    assert first.to_json() == second.to_json()


# What always holds

requests_drawn = st.tuples(
    st.integers(0, 60), st.integers(1, 120), st.integers(1, 60), st.integers(0, 8), st.sampled_from([None, "x", "y"]),
)  # fmt: skip
MIXES = {
    "full": [full(4)],
    "sliding": [full(4), full(4), sliding(9, block_size=4), sliding(9, block_size=4)],
    "two windows": [full(4), sliding(5, block_size=4), sliding(14, block_size=4)],
    "chunked": [full(4), chunked(16, block_size=4)],
    "mamba": [full(4), mamba(4), mamba(4)],
    "window alone": [sliding(9, block_size=4)],
}


@cache
def deployed(mix: str, num_blocks: int, async_scheduling: bool) -> Deployment:
    """A replica with few layers and short windows; its blocks hold four tokens."""
    limits = {"max_model_len": 256, "max_num_batched_tokens": 40, "max_num_seqs": 6}
    plain = deploy(server(block_size=4, async_scheduling=async_scheduling, **limits))
    layers = MIXES[mix]
    layout = KVCacheLayout(tuple(group_layers(layers)), num_blocks, 256, 40)
    state_block = 4 if any(layer.kind == "mamba" for layer in layers) else None
    return replace(
        plain, layout=layout, scheduler_settings=replace(plain.scheduler_settings, state_block=state_block)
    )  # fmt: skip


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("mix", MIXES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_invariants_hold_whatever_comes(mix, async_scheduling, data):
    """Any traffic, tight pools, slow links; all is looked at when somebody arrives, in between, and at the end."""
    drawn = sorted(data.draw(st.lists(requests_drawn, min_size=1, max_size=14)), key=lambda each: each[0])
    sizes = st.lists(st.sampled_from([70, 100, 300]), min_size=1, max_size=3)
    prefill, decode = ([deployed(mix, size, async_scheduling) for size in data.draw(sizes)] for _ in range(2))
    link = Link(data.draw(st.sampled_from([1e3, 1e5, 1e12])), data.draw(st.sampled_from([0.0, 0.4, 7.0])))
    env = simpy.Environment()
    world = Disaggregation(env, (Servers((), LeastLoaded()), Servers((), PrefixAware())), (prefill, decode), link)

    def deliver():
        for serial, (at_s, prompt, output, shared, session) in enumerate(drawn):
            yield wait_until(env, float(at_s))
            check_under_way(world)
            world.submit(Arrival(row(str(serial), float(at_s), prompt, output, range(shared), session), 8, serial))

    def look():
        for _ in range(40):
            yield env.timeout(3.7)
            check_under_way(world)

    env.process(deliver())
    env.process(look())
    env.run()
    check_disaggregation(world, [replica.result() for replica in world.replicas])
    assert len(world.rows.columns()["request_id"]) == len(drawn)
    assert not any(replica.scheduler.held for replica in world.replicas)


# Sabotage: each check names what was broken


@pytest.fixture
def served():
    """A run that is over, and its replicas' results."""
    env = simpy.Environment()
    world = Disaggregation(
        env, (Servers((), RoundRobin()), Servers((), RoundRobin())),
        ([deployed("sliding", 100, True)], [deployed("sliding", 100, True)]), Link(1e9),
    )  # fmt: skip
    for serial, name in enumerate("abc"):
        world.submit(Arrival(row(name, prompt=40), 16, serial))
    env.run()
    return world, [replica.result() for replica in world.replicas]


def test_a_lost_request_is_noticed(served):
    world, results = served
    world.num_arrived += 1
    with pytest.raises(InvariantError, match=r"^requests-add-up: 4 requests arrived, 3 ended"):
        check_disaggregation(world, results)


def test_a_request_in_neither_fleet_is_noticed(served):
    world, _ = served
    world.load.change(1, 0.0)
    with pytest.raises(
        InvariantError, match=r"^requests-add-up: 1 requests have arrived and not ended, 0 are under way"
    ):
        check_under_way(world)


def test_blocks_that_nobody_will_read_are_noticed(served):
    world, _ = served
    (replica,) = world.prefill_replicas
    request = row("d", prompt=40)
    held = Arrival(request, 16, 9).request_for(replica.scheduler.manager)
    held.finish_s = 0.0
    replica.scheduler.held[held] = False
    with pytest.raises(InvariantError, match=r"^lent-until-read: 0 requests may still be read, 1 hold blocks"):
        check_under_way(world)


def test_lost_bytes_are_noticed(served):
    world, results = served
    world.decode_replicas[0].receives.num_bytes -= 1
    with pytest.raises(InvariantError, match=r"^bytes-add-up:"):
        check_disaggregation(world, results)


def test_a_token_too_many_is_noticed(served):
    world, results = served
    results[1].tables["steps"]["num_decodes"][-1] += 1
    with pytest.raises(InvariantError, match=r"^tokens-once: replica 0 generated 10 tokens"):
        check_disaggregation(world, results)


def test_wrong_times_are_noticed(served):
    world, results = served
    world.rejected_after_s += 100.0
    with pytest.raises(InvariantError, match=r"^littles-law:"):
        check_disaggregation(world, results)


def test_blocks_that_are_read_twice_are_noticed():
    env = simpy.Environment()
    world = Disaggregation(
        env, (Servers((), RoundRobin()), Servers((), RoundRobin())),
        ([deployed("sliding", 100, True)], [deployed("sliding", 100, True)]), Link(1.0),
    )  # fmt: skip
    world.submit(Arrival(row("a", prompt=40), 16, 0))
    env.run(until=50.0)
    hand_over = world.under_way[0]
    hand_over.is_lent = False
    with pytest.raises(InvariantError, match=r"^lent-until-read: request 'a' is to be read and is not there"):
        world.start(0, hand_over.prefill_request, [object()], world.decode_replicas[0])
