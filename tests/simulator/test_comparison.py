"""Two runs side by side: what differs in, what differs out, and which of them is better at what."""

import json

import pytest

from simulator import Scenario, simulate
from simulator.binding import binding_of, most_common_binding
from simulator.comparison import compare
from simulator.fleet import simulate_fleet
from simulator.measures import dollars, format_dollars, gpus_of
from simulator.prices import Price
from simulator.router import RoundRobin
from simulator.run_folder import write_run

PRICES = {"l40s": Price(1.0, "a list"), "l4": Price(0.5, "a list")}
SETTINGS = {"model": "llama-3.1-8b", "gpu": "l40s", "max_model_len": 4096, "num_requests": 6}


@pytest.fixture(scope="module")
def run():
    return simulate(Scenario(**SETTINGS))


@pytest.fixture(scope="module")
def slower():
    """Another block size, and one request at a time."""
    return simulate(Scenario(**SETTINGS, block_size=32, max_num_seqs=1, rate_scale=100.0))


@pytest.fixture(scope="module")
def fleet():
    mixed = [Scenario(**SETTINGS), Scenario(**{**SETTINGS, "tensor_parallel_size": 2})]
    return simulate_fleet(mixed, RoundRobin())


# ------------------------------------------------------------------------------------------------- comparing


def test_settings_and_capacity_that_differ_are_listed(run, slower):
    comparison = compare(run.to_json(), slower.to_json(), PRICES)
    assert {each.name: (each.first, each.second) for each in comparison.settings} == {
        "rate_scale": (1.0, 100.0), "block_size": (16, 32), "max_num_seqs": (run.scenario["max_num_seqs"], 1)
    }  # fmt: skip
    capacity = {each.name: (each.first, each.second) for each in comparison.capacity}
    assert capacity["full block_size"] == (16, 32)
    assert capacity["num_blocks"] == (run.capacity["num_blocks"], slower.capacity["num_blocks"])


def test_a_change_has_its_size_and_its_better_side(run, slower):
    changes = {each.measure.column: each for each in compare(run.to_json(), slower.to_json(), PRICES).measures}
    ttft = changes["ttft_p99_s"]
    assert ttft.change_pct == pytest.approx(100 * (slower.summary["ttft_s"]["p99"] / run.summary["ttft_s"]["p99"] - 1))
    assert (ttft.better, changes["finished"].better, changes["steps"].better) == ("first", None, None)
    assert changes["output_tokens_per_s"].better == "first"


def test_a_run_differs_from_itself_in_nothing(run):
    comparison = compare(run.to_json(), run.to_json(), PRICES)
    assert (comparison.settings, comparison.capacity) == ((), ())
    assert {each.better for each in comparison.measures} == {None}


def test_a_fleet_compares_with_a_server(run, fleet):
    comparison = compare(run.to_json(), fleet.to_json(), PRICES)
    settings = {each.name: each.second for each in comparison.settings}
    assert settings["fleet.num_replicas"] == 2
    assert settings["replica 1 tensor_parallel_size"] == 2
    changes = {each.measure.column: (each.first, each.second) for each in comparison.measures}
    assert changes["num_gpus"] == (1, 3)
    assert changes["dollars_per_hour"] == (1.0, 3.0)


# ---------------------------------------------------------------------------------------------- the command


@pytest.fixture
def folders(run, slower, tmp_path):
    for name, result in (("a", run), ("b", slower)):
        write_run(result, tmp_path / name, with_report=False)
    return tmp_path


def test_it_prints_both_sides(kvplan, folders):
    done = kvplan("compare", "a", "b")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[:3] == ["Settings a b", "rate_scale 1 100", "block_size 16 32"]
    assert "Requests finished 6 6 =" in lines
    assert any(line.startswith("TTFT p99 ") and line.endswith("% a") for line in lines)
    assert lines[-1] == "What seems to bind nothing max num seqs"


def test_runs_without_a_difference_say_so(kvplan, folders):
    assert kvplan("compare", "a", "a").out.startswith("Settings: no difference\n\nCapacity: no difference\n")


def test_json_has_the_same(kvplan, folders, run, slower):
    said = json.loads(kvplan("compare", "a", "b", "--json").out)
    assert said["runs"] == ["a", "b"]
    assert said["settings"]["block_size"] == {"first": 16, "second": 32}
    assert said["measures"]["ttft_p99_s"]["better"] == "first"
    assert said["binding"] == {"first": "nothing", "second": "max_num_seqs"}


def test_what_is_no_run_is_one_line(kvplan, folders):
    done = kvplan("compare", "a", "c")
    assert (done.code, done.out) == (2, "")
    assert done.err == "kvplan: c is not a run folder: summary.json cannot be read: No such file or directory\n"
    (folders / "b" / "summary.json").write_text('{"scenario": {}, "capacity": {}}', encoding="utf-8")
    assert kvplan("compare", "a", "b").err == "kvplan: b/summary.json is damaged: it has no requests\n"


# --------------------------------------------------------------------------------------------------- costs


def test_cost_is_gpus_times_price_over_tokens():
    run = {"throughput": {"output_tokens_per_s": 1000.0, "prompt_tokens_per_s": 3000.0}}
    cost = dollars(run, {"l40s": 2, "l4": 4}, PRICES)
    assert cost == {
        "num_gpus": 6,
        "gpu_hours_per_million_output_tokens": pytest.approx(6 / 3.6, rel=1e-5),
        "dollars_per_hour": 4.0,
        "dollars_per_million_output_tokens": pytest.approx(4 / 3.6, rel=1e-5),
        "dollars_per_million_tokens": pytest.approx(1 / 3.6, rel=1e-5),
    }


def test_without_a_price_or_a_token_the_cost_is_unknown(run):
    nothing = {"throughput": {"output_tokens_per_s": None, "prompt_tokens_per_s": None}}
    assert dollars(nothing, {"l40s": 1}, PRICES)["dollars_per_million_output_tokens"] is None
    unknown = dollars(run.to_json(), {"b200": 1}, PRICES)
    assert unknown["dollars_per_hour"] is None
    assert unknown["gpu_hours_per_million_output_tokens"] > 0


def test_a_server_without_a_gpu_has_an_unknown_one():
    result = simulate(
        Scenario(
            model="llama-3.1-8b", step_time_s=0.01, num_gpu_blocks_override=999, max_model_len=2048, num_requests=1
        )
    )
    assert gpus_of(result.to_json()) == {"unknown": 1}


@pytest.mark.parametrize(
    ("amount", "text"), [(None, "–"), (1234.5, "$1,234"), (12.3, "$12.30"), (0.5, "$0.50"), (0.0123, "$0.012")]
)
def test_dollars_read_like_dollars(amount, text):
    assert format_dollars(amount) == text


# --------------------------------------------------------------------------------------------- what binds


def summary(waiting=0.0, usage=0.5, running=4, preemptions=0, tokens_per_step=100.0):
    return {
        "preemptions": {"total": preemptions}, "waiting": {"mean": waiting}, "kv_cache_usage": {"max": usage},
        "running": {"max": running}, "prefix_cache_hit_rate": 0.5, "makespan_s": 10.0, "steps": 100,
        "throughput": {"prompt_tokens_per_s": 10 * tokens_per_step, "output_tokens_per_s": 5 * tokens_per_step},
    }  # fmt: skip


SERVER = {"max_num_seqs": 8, "max_num_batched_tokens": 512}


@pytest.mark.parametrize(
    ("said", "binding"),
    [
        (summary(), "nothing"),
        (summary(usage=1.0), "nothing"),
        (summary(preemptions=1), "kv_memory"),
        (summary(waiting=2.0, usage=0.96), "kv_memory"),
        (summary(waiting=2.0, running=8), "max_num_seqs"),
        (summary(waiting=2.0, tokens_per_step=500.0), "token_budget"),
        (summary(waiting=2.0), "step_speed"),
    ],
)
def test_what_binds_follows_from_the_summary(said, binding):
    assert binding_of(said, SERVER) == binding


def test_of_a_fleet_what_binds_most_of_its_replicas():
    replicas = [
        {**summary(), "scenario": SERVER},
        {**summary(waiting=2.0), "scenario": SERVER},
        {**summary(waiting=2.0, running=8), "scenario": SERVER},
        {**summary(waiting=3.0, running=8), "scenario": SERVER},
    ]
    assert most_common_binding({"replicas": replicas}, SERVER) == "max_num_seqs"
    assert most_common_binding({"replicas": replicas[:1]}, SERVER) == "nothing"
