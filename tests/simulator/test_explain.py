"""Explaining a request of a run: the replay is the run, and mistakes are said in one line."""

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvcache.hit_report import report_hit
from simulator import Scenario, ScenarioError, simulate
from simulator.engine import run_to_the_end
from simulator.explain import explain
from simulator.explain_run import explain_run, scenario_of_run
from simulator.latency import ConstantStepTimes
from simulator.run_folder import write_run
from simulator.watcher import Watcher
from tests.kvcache.pools import chunked, full, mamba, sliding
from tests.simulator.conftest import Arrival, OneStepAtATime, new_scheduler
from tests.simulator.stories import arrivals_of, serve
from workloads import Trace, TraceRequest

LAYERS = {
    "full": ([full(4)], 4),
    "full-window": ([full(4), sliding(9, 4)], 4),
    "windows": ([full(4, num_kv_heads=2), sliding(16, 8), sliding(8, 8)], 4),
    "full-chunk": ([full(4), chunked(16, 4)], 4),
    "full-state": ([full(8), mamba(8)], 8),
    "state": ([mamba(8)], 8),
}


def random_requests(seed: int) -> list[Arrival]:
    """Twenty requests that share beginnings, more than fit at once."""
    draw = random.Random(seed)
    requests = []
    for _ in range(20):
        prompt = draw.randrange(1, 90)
        family, shared = draw.randrange(3), draw.randrange(0, prompt // 8 + 1)
        ids = [100 * family + nth + 1 for nth in range(shared)]
        requests.append(Arrival(draw.randrange(0, 80) / 2, prompt, draw.randrange(1, 30), tuple(ids)))
    return requests


def ends_last(recorder) -> str:
    return str(recorder.requests_table()["request_id"][-1])


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("seed", range(4))
def test_a_watched_run_is_the_run(layers, async_scheduling, seed):
    """Every request and every step, to the end of the one that ends last; and its story says what was recorded."""
    specs, block_size = LAYERS[layers]
    server = {
        "layers": specs,
        "block_size": block_size,
        "num_blocks": 60,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 6,
        "async_scheduling": async_scheduling,
        "retention": [0, None][seed % 2] if len(specs) > 1 and layers != "full-chunk" else 0,
    }
    plain, _ = serve(random_requests(seed), None, **server)
    watched, story = serve(random_requests(seed), ends_last(plain), **server)
    for table in ("requests_table", "steps_table", "token_gaps_table"):
        ours, theirs = getattr(watched, table)(), getattr(plain, table)()
        for column, values in theirs.items():
            np.testing.assert_array_equal(ours[column], values, err_msg=column)
    row = {name: values[-1] for name, values in plain.requests_table().items()}
    assert (story.end_s, story.first_token_s, story.cached_tokens, story.num_preemptions) == (
        row["finish_s"],
        row["first_token_s"],
        row["cached_tokens"],
        row["num_preemptions"],
    )
    assert len(story.attempts) == row["num_preemptions"] + 1


class Checked(Watcher):
    """A watcher that compares each admission's reported hit with the one that the request really has."""

    num_checked = 0

    def admitting(self, blocks, hit_tokens):
        report = report_hit(self._manager, blocks, blocks.hit_asked[0], 0)
        assert report.hit_tokens == hit_tokens
        Checked.num_checked += 1
        super().admitting(blocks, hit_tokens)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_hit_taken_apart_is_the_hit(layers, monkeypatch):
    """Asked in turn, the attention types agree on what the coordinator gave, at every admission of every request."""
    monkeypatch.setattr("tests.simulator.stories.Watcher", Checked)
    specs, block_size = LAYERS[layers]
    before = Checked.num_checked
    for seed in range(5):
        server = {"layers": specs, "block_size": block_size, "num_blocks": 60, "max_num_batched_tokens": 32}
        plain, _ = serve(random_requests(seed), None, **server)
        serve(random_requests(seed), ends_last(plain), **server)
    assert Checked.num_checked - before >= 100


def losses(requests, name, **server) -> set[float]:
    """When keys of the request's prefix ceased to find a block, as one sees who looks at the map after each step."""
    scheduler = new_scheduler(**server)
    like, times, before = arrivals_of(scheduler, requests)[name], set(), set()
    num_units = like.max_tokens // scheduler.manager.hash_unit
    groups = range(len(scheduler.manager.layout.groups))
    keys = {key + group for key in like.blocks.keys.first(num_units)[:num_units] for group in groups}

    class Looks:
        def planned(self, start_s, scheduler, batch):
            nonlocal before
            there = keys & scheduler.manager.pool.block_of.keys()
            times.update({start_s} if before - there else set())
            before = there

        def settled(self, start_s, end_s, num_steps, batch, ended):
            nonlocal before
            before |= keys & scheduler.manager.pool.block_of.keys()

    arrivals = iter(sorted(arrivals_of(scheduler, requests).values(), key=lambda request: request.arrival_s))
    run_to_the_end(scheduler, OneStepAtATime(ConstantStepTimes(1.0)), arrivals, Looks())
    return times


@pytest.mark.parametrize("layers", [layers for layers in LAYERS if layers != "state"])
def test_an_eviction_was_when_the_map_lost_the_key(layers):
    """A story's evictions are among those that anybody sees, step by step, in a run that nobody watches."""
    specs, block_size = LAYERS[layers]
    server = {"layers": specs, "block_size": block_size, "num_blocks": 40, "max_num_batched_tokens": 32}
    told = 0
    for seed in range(6):
        requests = random_requests(seed)
        for name in "klmnopqrst":
            _, story = serve(requests, name, **server)
            evicted = {
                kind.cause.when.time_s
                for attempt in story.attempts
                for kind in (() if attempt.admission is None else attempt.admission.types)
                if kind.cause is not None
                and kind.cause.kind == "evicted"
                # What came and went, or went and came, in one step is not to be seen from without.
                and kind.cause.when.step not in (kind.cause.computed_when.step, attempt.admission.when.step)
            }
            if evicted:
                told += 1
                assert evicted <= losses(requests, name, **server)
    assert told >= 5


# ------------------------------------------------------------------------------------------------ run folders


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """A pool so small that requests wait, lose blocks and are preempted."""
    return Scenario(
        model="gemma-3-1b",
        step_time_s=0.02,
        num_gpu_blocks_override=3000,
        max_model_len=4096,
        num_requests=80,
        rate_scale=30,
    )


@pytest.fixture(scope="module")
def result(scenario):
    return simulate(scenario)


@pytest.fixture
def folder(result, tmp_path) -> Path:
    return write_run(result, tmp_path / "run", with_report=False)


def test_every_request_of_a_run_can_be_explained(folder, result):
    """Those preempted most, those with hits and the last: the replay says what was recorded, else it raises."""
    requests = result.requests.sort_values("num_preemptions")
    assert requests["num_preemptions"].max() > 0
    for request_id in [*requests["request_id"].tail(3), *requests["request_id"].head(3)]:
        assert explain_run(folder, request_id).request_id == request_id


def test_a_run_is_rebuilt_from_its_summary(folder, result):
    rebuilt = scenario_of_run(folder)
    assert simulate(rebuilt).to_json() == result.to_json()


def test_the_first_of_two_requests_with_one_id():
    rows = [TraceRequest("twice", at_s, prompt_tokens=20, output_tokens=2) for at_s in (1.0, 5.0)]
    trace = Trace("two", None, rows=lambda: iter(rows))
    assert explain(Scenario(model="gemma-3-1b", gpu="l4"), "twice", trace).arrival_s == 1.0


def test_a_request_turned_away_at_the_door(folder):
    scenario = Scenario(**{**dict(scenario_of_run(folder)), "max_model_len": 200})
    story = next(
        story
        for story in (
            explain(scenario, request_id) for request_id in pd.read_parquet(folder / "requests.parquet").request_id
        )
        if story.status == "rejected"
    )
    assert story.attempts == ()
    assert story.reason == "prompt and output are longer than max_model_len 200"


def test_an_unknown_request_is_answered_with_the_nearest_ids(folder):
    with pytest.raises(ScenarioError, match=r"run has no request '.*x'; the nearest: "):
        explain_run(folder, f"{pd.read_parquet(folder / 'requests.parquet').request_id[0]}x")


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ScenarioError, match=r"nowhere is not a run folder: summary\.json cannot be read: No such file"):
        explain_run(tmp_path / "nowhere", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"summary\.json is damaged: it is not JSON$"),
        ("[]", r"summary\.json is damaged: it does not say which scenario was run$"),
        ('{"scenario": {"model": "gemma-3-1b", "colour": 1}, "capacity": {}}', "another version of kvplan: unknown"),
    ],
)
def test_a_damaged_summary(folder, text, message):
    (folder / "summary.json").write_text(text)
    with pytest.raises(ScenarioError, match=message):
        explain_run(folder, "1")


def test_damaged_and_missing_tables(folder):
    (folder / "requests.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ScenarioError, match=r"requests\.parquet is damaged: it is not a whole Parquet file$"):
        explain_run(folder, "1")
    (folder / "requests.parquet").unlink()
    with pytest.raises(ScenarioError, match=r"requests\.parquet cannot be read: "):
        explain_run(folder, "1")


def test_a_trace_that_is_not_there_any_more(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary["scenario"]["trace"] = "gone.jsonl"
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ScenarioError, match=r"^--trace: the run's trace gone\.jsonl is not there; say where it is"):
        scenario_of_run(folder)


def test_a_run_that_does_not_come_out_again(folder, result):
    """Somebody changed the seed in the summary: the workload is another one."""
    summary = json.loads((folder / "summary.json").read_text())
    summary["scenario"]["seed"] = 1
    (folder / "summary.json").write_text(json.dumps(summary))
    late = result.requests.sort_values("finish_s")["request_id"].iloc[-1]
    with pytest.raises(ScenarioError, match=r"does not come out again: request .* in the replay, so the trace or"):
        explain_run(folder, late)


def test_a_server_that_would_be_another_one_today(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary["capacity"]["num_blocks"] += 1
    (folder / "summary.json").write_text(json.dumps(summary))
    request_id = pd.read_parquet(folder / "requests.parquet").request_id[0]
    with pytest.raises(ScenarioError, match=r"num_blocks was 3001 and is 3000 today, so kvplan has changed since$"):
        explain_run(folder, request_id)
