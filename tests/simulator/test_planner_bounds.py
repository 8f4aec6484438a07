"""What arithmetic proves of a server: no run ever does better, and fleets below the bound do not hold."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Scenario
from simulator.deployment import deploy
from simulator.engine import workload_of
from simulator.planner_bounds import Bound, Demand, Shape, bound_of, guess_replicas
from simulator.planner_trial import Trial, answer
from simulator.slo import Limit, Slo, parse_slo
from workloads import TraceRequest, conversation_demo

ASKED = (
    Limit("ttft", "p99", 1.0),
    Limit("ttft", "mean", 1.0),
    Limit("tpot", "p90", 1.0),
    Limit("e2e", "p95", 1.0),
    Limit("itl", "p50", 1.0),
)


def bound(scenario: Scenario, slo: Slo, warm_up: float = 0.0) -> Bound:
    trace = workload_of(scenario)
    rows = list(trace)
    longest = max(row.prompt_tokens + row.output_tokens for row in rows)
    return bound_of(deploy(scenario), [Demand.of(rows, trace.prefix_block_tokens, warm_up)], slo, longest)


def as_measured(outcome: dict, slo: Slo) -> Slo:
    """The strictest limits that the run just keeps, but for the rounding of what it says."""
    limits = [
        replace(limit, limit_s=outcome["limits"][limit.text] * 1.00001)
        for limit in slo.limits
        if outcome["limits"][limit.text] is not None
    ]
    return Slo(tuple(limits))


SERVERS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["gemma-3-1b", "llama-3.1-8b", "granite-4.0-h-tiny", "gpt-oss-20b"]),
        "gpu": st.sampled_from(["l40s", "h100-80gb"]),
        "tensor_parallel_size": st.sampled_from([1, 2]),
        "max_num_batched_tokens": st.sampled_from([256, 2048]),
        "max_num_seqs": st.sampled_from([2, 16, 256]),
        "async_scheduling": st.booleans(),
    }
)
TRAFFIC = st.fixed_dictionaries(
    {
        "request_rate": st.sampled_from([1.0, 10.0, 200.0]),
        "input_len": st.sampled_from([1, 100, 3000]),
        "output_len": st.sampled_from([1, 2, 40]),
        "num_requests": st.integers(2, 30),
        "seed": st.integers(0, 99),
    }
)


@settings(max_examples=40, deadline=None)
@given(SERVERS, TRAFFIC, st.integers(1, 3), st.sampled_from([0.0, 0.3]), st.sampled_from([3000, 20_000]))
def test_no_fleet_that_holds_is_below_the_bound(server, traffic, num_replicas, warm_up, num_blocks):
    """The SLO is what a run measured, so that this fleet holds; then no bound may exclude it."""
    server = {"max_model_len": 4096, **server, "num_gpu_blocks_override": num_blocks}
    scenario = Scenario(**server, **traffic)
    outcome = answer(Trial(scenario, num_replicas, None, Slo(ASKED), warm_up))
    assert outcome["status"] == "finished", outcome["reason"]
    found = bound(scenario, as_measured(outcome, Slo(ASKED)), warm_up)
    assert (found.wall, min(found.least_replicas, num_replicas)) == (None, found.least_replicas)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 20), st.integers(1, 3), st.sampled_from([2.0, 20.0]))
def test_nor_where_prompts_are_shared(seed, num_replicas, rate_scale):
    scenario = Scenario(
        model="gemma-3-1b", gpu="l4", num_gpu_blocks_override=9000, num_requests=60, seed=seed, rate_scale=rate_scale
    )
    outcome = answer(Trial(scenario, num_replicas, None, Slo(ASKED)))
    found = bound(scenario, as_measured(outcome, Slo(ASKED)))
    assert (found.wall, min(found.least_replicas, num_replicas)) == (None, found.least_replicas)


@settings(max_examples=8, deadline=None)
@given(TRAFFIC, st.integers(1, 2), st.sampled_from([0.5, 0.9, 1.0]))
def test_nor_with_limits_for_each_request(traffic, num_replicas, share):
    """The limits are those that just so many requests of the run keep."""
    scenario = Scenario(model="gemma-3-1b", gpu="l4", num_gpu_blocks_override=9000, **traffic)
    quantiles = Slo(tuple(Limit(measure, f"p{min(99.999, 100 * share):g}", 1.0) for measure in ("ttft", "e2e")))
    measured = as_measured(answer(Trial(scenario, num_replicas, None, quantiles)), quantiles)
    each = Slo((), tuple(replace(limit, statistic=None) for limit in measured.limits), 1.0)
    attained = answer(Trial(scenario, num_replicas, None, each))["attainment"]
    found = bound(scenario, replace(each, attainment=attained) if attained else each)
    assert not attained or (found.wall, min(found.least_replicas, num_replicas)) == (None, found.least_replicas)


# ------------------------------------------------------------------------------------------------------- stories

LLAMA = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "max_model_len": "auto", "num_requests": 200}


def test_an_empty_server_may_be_too_slow_already():
    scenario = Scenario(**LLAMA, request_rate=1, input_len=16000, output_len=100)
    assert bound(scenario, parse_slo(["ttft.p99=100ms"])).wall == "TTFT p99 is 420 ms on an empty server, over 100 ms"


def test_a_token_may_take_too_long_however_many_replicas_there_are():
    scenario = Scenario(**LLAMA, request_rate=1, input_len=1000, output_len=100)
    assert bound(scenario, parse_slo(["tpot.p50=5ms"])).wall == "TPOT p50 is 7 ms on an empty server, over 5 ms"


def test_the_longest_request_may_not_fit():
    scenario = Scenario(**{**LLAMA, "num_gpu_blocks_override": 100}, request_rate=1, input_len=3000, output_len=100)
    assert bound(scenario, parse_slo(["ttft.p99=9s"])).wall == (
        "the longest request has 3,100 tokens, and at most 1,584 fit"
    )


def test_prompts_alone_ask_for_replicas():
    scenario = Scenario(**LLAMA, request_rate=20, input_len=8000, output_len=1)
    found = bound(scenario, parse_slo(["ttft.p99=1s"]))
    assert (found.least_replicas, found.reason) == (4, "the arithmetic of the prompts")


def test_outputs_that_hold_much_memory_ask_for_replicas():
    scenario = Scenario(**{**LLAMA, "num_gpu_blocks_override": 600}, request_rate=20, input_len=1000, output_len=1000)
    found = bound(scenario, parse_slo(["e2e.p90=20s"]))
    assert (found.least_replicas > 1, found.reason) == (True, "the arithmetic of whole requests")


def test_a_larger_slo_never_asks_for_more():
    scenario = Scenario(**LLAMA, request_rate=20, input_len=8000, output_len=100)
    least = [
        bound(scenario, parse_slo([f"ttft.p99={seconds}s", "tpot.p99=1s"])).least_replicas for seconds in (1, 5, 60)
    ]
    assert least == sorted(least, reverse=True)


def test_tokens_that_an_earlier_request_had_may_cost_nothing():
    rows = [
        TraceRequest("a", 0.0, 64, 5, prefix_ids=(1, 2, 3, 4)),
        TraceRequest("b", 1.0, 64, 5, prefix_ids=(1, 2, 9, 4)),
        TraceRequest("c", 2.0, 32, 5, prefix_ids=(1, 2)),
    ]
    demand = Demand.of(rows, 16)
    assert demand.shapes == {Shape(64, 64, 5): 1, Shape(64, 32, 5): 1, Shape(32, 1, 5): 1}
    assert demand.may_share


def test_what_is_left_out_at_the_start_is_no_demand():
    rows = list(conversation_demo())
    assert Demand.of(rows, 16, warm_up=0.25).num_requests == 300


def guess(rate: float, least: int = 1) -> int:
    """Replicas with which to begin at so many requests a second."""
    scenario = Scenario(**LLAMA, request_rate=rate, input_len=2000, output_len=200)
    trace = workload_of(scenario)
    demands = [Demand.of(list(trace), trace.prefix_block_tokens)]
    slo = parse_slo(["ttft.p99=1s", "tpot.p99=50ms"])
    return guess_replicas(deploy(scenario), demands, slo, least, 64)


def test_a_guess_grows_with_the_rate():
    assert guess(2) < guess(60)


def test_a_guess_is_at_least_the_bound():
    assert guess(2) < 7 <= guess(2, least=7)
