"""Other groupings and the design document's semantics, on a server that runs."""

import pytest

from kvcache.errors import KVCacheError, UnsupportedLayersError
from kvcache.policies import POLICIES
from simulator.deployment import deploy
from simulator.engine import simulate
from simulator.pool_bytes import BYTE_COLUMNS
from simulator.scenario import Scenario, ScenarioError
from tests.kvcache.pools import cached_positions, full, request_of, sliding
from tests.simulator.conftest import Arrival, new_scheduler, run
from workloads import Arrivals, Lengths, Traffic, synthesize

GIB = 1 << 30
TRAFFIC = Traffic(Arrivals.poisson(20.0), Lengths.lognormal(900, 1.0, 3000), Lengths.fixed(60))
BUDGETS = {"gemma-3-1b": GIB // 4, "jamba-v0.1": 2 * GIB, "gemma-3n-e4b": GIB // 4}


def scenario(model: str, **more) -> Scenario:
    return Scenario(
        **{
            "model": model, "kv_cache_memory_bytes": BUDGETS[model], "step_time_s": 0.02, "max_model_len": 4096,
            "max_num_batched_tokens": 2048, **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize("model", BUDGETS)
@pytest.mark.parametrize("grouping", [name for name, policy in POLICIES.items() if policy.serves])
def test_every_grouping_serves_the_same_trace(model, grouping):
    """Under the same budget: all requests end, and in every sample each byte of it has its place."""
    try:
        result = simulate(scenario(model, grouping=grouping), synthesize(TRAFFIC, 40, seed=1))
    except UnsupportedLayersError:
        assert (model, grouping) == ("jamba-v0.1", "unified")  # as a server refuses it
        return
    assert result.summary["requests"]["finished"] == 40
    assert set(result.steps[list(BYTE_COLUMNS)].dropna().sum(axis=1)) == {BUDGETS[model]}


def test_two_levels_waste_less_than_one_size_where_pages_divide():
    """Gemma-3-1b: 22 sliding and 4 full layers, whose large page is as long as 11 of one and 2 of the other."""
    shares = {
        name: simulate(scenario("gemma-3-1b", grouping=name), synthesize(TRAFFIC, 40, seed=1)).summary["wasted_bytes"]
        for name in ("two-level", "unified")
    }
    assert shares["two-level"]["share_of_held"] < shares["unified"]["share_of_held"]


def test_the_hybrid_manager_off_is_one_group():
    by_flag = deploy(scenario("gemma-3-1b", disable_hybrid_kv_cache_manager=True))
    assert by_flag.layout.groups == deploy(scenario("gemma-3-1b", grouping="unified")).layout.groups


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grouping": "smalest"}, "unknown grouping 'smalest'; did you mean 'smallest'?"),
        ({"grouping": "ideal"}, "--grouping: ideal is a bound that no server reaches; `kvplan waste` shows it"),
        (
            {"grouping": "gcd", "disable_hybrid_kv_cache_manager": True},
            "--grouping: --disable-hybrid-kv-cache-manager leaves one group (unified), got 'gcd'",
        ),
    ],
)
def test_groupings_that_cannot_be_served(settings, message):
    with pytest.raises((KVCacheError, ScenarioError)) as refused:
        deploy(scenario("gemma-3-1b", **settings))
    assert str(refused.value) == message


# What the design document says where vLLM has moved on


def test_the_document_reuses_a_block_without_a_hash_in_its_turn():
    """Who takes a block next gets it from vLLM's pool; the document's has never used ones before it."""
    for is_document, expected in ((False, [1]), (True, [2])):
        pool = new_scheduler(num_blocks=10, is_document=is_document).manager.pool
        pool.put_unhashed(pool.take(1))
        assert pool.take(1) == expected


def test_the_document_caches_every_block_of_every_group():
    """Of a prompt of 40 tokens a server keeps the window before its end, the document's all ten blocks."""
    for is_document, expected in ((False, [8]), (True, list(range(9)))):
        manager = new_scheduler(layers=[full(4), sliding(5, 4)], num_blocks=40, is_document=is_document).manager
        request = request_of(manager, range(40))
        manager.new_step()
        assert manager.admit(request, 0, 36)
        assert cached_positions(manager, range(36)) == [list(range(9)), expected]


def test_the_document_admits_by_the_first_chunk():
    """A prompt of 40 tokens in a pool of nine blocks beside another's: its first chunk of 16 fits, all of it not."""
    requests = [Arrival(0.0, 12, 9), Arrival(0.5, 40, 1)]
    settings = {"num_blocks": 13, "max_num_batched_tokens": 16}
    waits = run(requests, **settings).requests["b"].first_scheduled_s
    starts = run(requests, reserve_full_isl=False, **settings).requests["b"].first_scheduled_s
    assert starts == 1.0 < waits


def test_the_documents_semantics_set_what_it_says():
    document = deploy(scenario("gemma-3-1b", semantics="document"))
    server = deploy(scenario("gemma-3-1b"))
    for deployment, expected in ((document, [None, True, False, 4]), (server, [0, False, True, 4])):
        cache = deployment.cache_settings
        assert [
            cache.prefix_cache_retention_interval, cache.caches_every_block,
            deployment.scheduler_settings.reserve_full_isl, len(deployment.layout.groups[0].layers),
        ] == expected  # fmt: skip


def test_what_is_asked_for_beside_the_semantics_holds():
    mixed = scenario("gemma-3-1b", semantics="document", grouping="gcd", prefix_cache_retention_interval=0)
    deployment = deploy(mixed)
    assert deployment.cache_settings.prefix_cache_retention_interval == 0
    assert max(len(group.layers) for group in deployment.layout.groups) == 2


def test_a_mistaken_semantics_is_named():
    with pytest.raises(ScenarioError, match=r"--semantics: must be 'vllm' or 'document', got 'docment'"):
        scenario("gemma-3-1b", semantics="docment")


@pytest.mark.parametrize(("model", "budget"), [("gemma-3-27b", 30 * GIB), ("jamba-v0.1", 3 * GIB)])
def test_the_ledger_of_a_public_trace_adds_up(shared_data, model, budget):
    """The first 600 of the Mooncake conversations, with evictions; docs/validation.md has the whole."""
    trace = shared_data / "traces" / "mooncake_conversation.jsonl"
    server = {"gpu": "h200", "tensor_parallel_size": 8, "kv_cache_memory_bytes": budget}
    result = simulate(Scenario(model=model, trace=trace, num_requests=600, **server))
    samples = result.steps[list(BYTE_COLUMNS)].dropna()
    assert result.summary["evictions"] > 0
    assert set(samples.sum(axis=1)) == {budget}
