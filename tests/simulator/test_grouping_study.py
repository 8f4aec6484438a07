"""One trace under each grouping: what is run, what is kept of it, what is said, and what is written."""

import csv
import json
import multiprocessing
import re
from dataclasses import dataclass

import pytest
from rich.console import Console

from kvcache.errors import InvariantError
from kvcache.ledger import LEDGER_PARTS
from kvcache.policies import POLICIES, VLLMPolicy, policy_named
from simulator import Scenario, ScenarioError, simulate
from simulator.grouping_study import request_tokens_at, study_groupings
from simulator.study_words import cells, remarks, study_table, verdict
from simulator.waste_command import print_waste
from workloads import Trace, TraceError, TraceRequest, read_trace

GIB = 1 << 30
SERVING = [name for name, policy in POLICIES.items() if policy.serves]


def chats(num_requests: int = 40) -> str:
    """Requests of 200 to 3,000 tokens that begin in pairs, twenty a second, as a Mooncake trace."""
    rows = []
    for nth in range(num_requests):
        tokens = 200 + 70 * nth
        ids = [1000 * (nth // 2) + block for block in range(tokens // 512)]
        ids += [10**6 + nth] * (tokens % 512 > 0)
        row = {"timestamp": 50 * nth, "input_length": tokens, "output_length": 60, "hash_ids": ids}
        rows.append(json.dumps(row))
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("traces") / "chats.jsonl"
    file.write_text(chats())
    return file


@pytest.fixture(scope="module")
def scenario(trace_file):
    """Gemma-3-1b in 128 MiB: room for about four of the longest requests."""
    return Scenario(
        model="gemma-3-1b", step_time_s=0.02, kv_cache_memory_bytes="128MiB", max_model_len=4096, trace=trace_file
    )


@pytest.fixture(scope="module")
def study(scenario, trace_file):
    return study_groupings(scenario, read_trace(trace_file), [policy_named(name) for name in SERVING])


def settings_of(scenario) -> dict:
    return dict(scenario) | {"trace": scenario.trace}


# What is run


def test_every_policy_has_an_outcome(study):
    assert [outcome.policy for outcome in study.outcomes] == SERVING


def test_policies_that_leave_the_same_server_share_a_run(study):
    assert study.twins == {"vllm": ["smallest", "packed", "document-mamba"], "gcd": ["search"]}
    assert list(study.runs) == ["vllm", "per-layer", "gcd", "unified", "two-level"]


def test_a_run_is_that_of_kvplan_simulate(study, scenario):
    alone = simulate(Scenario(**{**dict(scenario), "grouping": "gcd"}))
    shared = next(outcome.replay for outcome in study.outcomes if outcome.policy == "gcd")
    assert {**shared.summary, "wasted_bytes": None} == {**alone.summary, "wasted_bytes": None}


def test_all_have_the_same_bytes(study):
    assert {run.budget_bytes for run in study.runs.values()} == {128 << 20}


def test_every_rows_ledger_adds_up_to_the_budget(study):
    for row in study.rows():
        assert sum(row["ledger"].values()) == row["pool_bytes"]
        assert row["ledger"].keys() == LEDGER_PARTS.keys()


def test_a_row_says_that_it_is_of_a_replay(study):
    row = study.rows()[0]
    assert (row["kind"], row["request_tokens"], row["policy"], row["refused"]) == ("replay", None, "vllm", None)
    assert row["wasted_pct"] == pytest.approx(100 * row["summary"]["wasted_bytes"]["share_of_held"])
    assert row["wasted_pct_max"] >= row["wasted_pct"]


def test_groupings_that_do_not_start_are_listed_and_the_others_go_on(scenario, trace_file):
    """Windows kept whole need 26 layers of 4,096 tokens, 1 KiB each: 104 MiB. Windows of 512 tokens need less."""
    small = Scenario(**{**dict(scenario), "kv_cache_memory_bytes": "100MiB", "max_num_batched_tokens": 1024})
    policies = [policy_named(name) for name in ("unified", "vllm")]
    study = study_groupings(small, read_trace(trace_file), policies, num_workers=1)
    assert list(study.runs) == ["vllm"]
    assert "needs 0.10 GiB of KV cache" in study.refused["unified"]


def test_where_no_grouping_starts_the_first_reason_is_the_error(scenario, trace_file):
    small = Scenario(**{**dict(scenario), "kv_cache_memory_bytes": "2MiB"})
    with pytest.raises(ScenarioError, match=r"needs .* GiB of KV cache"):
        study_groupings(small, read_trace(trace_file), [policy_named("vllm"), policy_named("gcd")])


@dataclass(frozen=True)
class Breaking(VLLMPolicy):
    """Groups as vLLM does until it serves, in a process of its own."""

    name = "breaking"

    def groups(self, specs):
        if multiprocessing.parent_process() is not None:
            raise InvariantError("made-up: it broke")
        return policy_named("per-layer").groups(specs)


def test_a_run_that_fails_does_not_end_the_study(scenario, trace_file):
    study = study_groupings(scenario, read_trace(trace_file), [Breaking(), policy_named("vllm")])
    assert study.refused == {"breaking": "its run failed, InvariantError: made-up: it broke"}
    assert list(study.runs) == ["vllm"]
    (row, _) = study.rows()
    assert (row["pool_bytes"], row["ledger"], row["summary"]) == (None, None, None)


def test_progress_counts_the_requests_of_all_runs(scenario, trace_file):
    seen = []
    study_groupings(
        scenario, read_trace(trace_file), [policy_named("vllm"), policy_named("gcd")],
        lambda num_ended, num_runs: seen.append((num_ended, num_runs)),
    )  # fmt: skip
    assert seen[-1] == (80, 2)


# Lengths of a trace


def lengths(*tokens: int) -> Trace:
    rows = tuple(TraceRequest(f"{nth}", 0.0, each - 1, 1) for nth, each in enumerate(tokens))
    return Trace("made up", None, lambda: iter(rows))


def test_lengths_are_those_of_requests():
    assert request_tokens_at(lengths(*range(101, 201)), (10, 50, 99, 100)) == (110, 150, 199, 200)


def test_equal_lengths_are_told_once():
    assert request_tokens_at(lengths(500, 500, 500, 900), (10, 50, 100)) == (500, 900)


def test_a_trace_without_requests_has_no_lengths():
    with pytest.raises(ScenarioError, match="--trace: made up has no requests"):
        request_tokens_at(lengths(), (50,))


# In words


def test_who_serves_best_comes_first_and_by_how_much(study):
    (first, *_) = verdict(study, threshold_pct=10.0)
    rates = {name: run.summary["throughput"]["output_tokens_per_s"] for name, run in study.runs.items()}
    best = max(rates.values())
    assert any(first.startswith(name) or f"{name} comes first" in first for name in rates if rates[name] == best)
    assert f"{100 * (best / rates['vllm'] - 1):+.1f}%" in first


def test_unacceptable_padding_is_named_with_what_fixes_it(study):
    """Four full and 22 sliding layers: groups of four, two places of 28 empty."""
    (said,) = [line for line in verdict(study, threshold_pct=1.0) if line.startswith("Padding")]
    assert said == (
        "Padding under vllm is unacceptable: 5.9% of what requests hold, more than 1%; two-level fixes it: 0%,"
        " +10.7% output tokens per second."
    )


def test_acceptable_padding_is_said_too(study):
    assert "Padding under vllm is acceptable" in " ".join(verdict(study, threshold_pct=50.0))


def test_twins_are_told(study):
    assert "smallest, packed and document-mamba: the same server as vllm" in list(remarks(study))


@pytest.mark.parametrize("name", ["vllm", "per-layer"])
def test_the_table_fits_into_80_columns(study, name):
    console = Console(width=80, record=True)
    console.print(study_table(study))
    assert [line.split()[-1] for line in console.export_text().splitlines() if line.startswith(f"{name} ")] == [
        cells(study.runs[name])[-2]
    ]


# The command


def ask(scenario, name="gemma-3-1b", **asked):
    settings = {**settings_of(scenario), **asked.pop("settings", {})}
    del settings["model"]
    given = {
        "all_models": False, "groupings": ["vllm", "gcd"], "request_lengths": [], "threshold_pct": 10.0, "out": None,
        "as_json": False,
    }  # fmt: skip
    print_waste(name, settings, **{**given, **asked})


def test_json_has_static_rows_at_the_traces_lengths_then_replays(scenario, capsys):
    ask(scenario, as_json=True, groupings=["vllm"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["kind"], row["request_tokens"]) for row in rows] == [
        ("request", 470), ("request", 1590), ("request", 2710), ("request", 2990), ("replay", None)
    ]  # fmt: skip
    keys = {"model", "policy", "request_tokens", "pool_bytes", "ledger", "wasted_pct", "groups"}
    assert all(keys <= row.keys() for row in rows)


def test_the_text_has_both_tables_and_the_verdict(scenario, capsys):
    ask(scenario)
    said = capsys.readouterr().out
    assert "Requests of chats, prompt and output: p10 470, p50 1,590, p90 2,710, p99 2,990, max 2,990 tokens." in said
    assert "gemma-3-1b under chats: the same requests and bytes under each grouping" in said
    assert "Padding under vllm is" in said


FILES = ["causes.png", "ledger.png", "replays.csv", "waste.csv", "waste.html", "waste.md", "waste.png"]


def test_the_same_study_writes_the_same_bytes(scenario, tmp_path, capsys):
    for folder in ("one", "two"):
        ask(scenario, out=tmp_path / folder)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("one", "two"))
    assert sorted(one) == FILES
    assert one == two


def test_the_files_tell_the_study(scenario, tmp_path, capsys):
    ask(scenario, out=tmp_path)
    replays = list(csv.DictReader((tmp_path / "replays.csv").read_text().splitlines()))
    assert [row["policy"] for row in replays] == ["vllm", "gcd"]
    for row in replays:
        assert sum(int(row[f"{part}_bytes"]) for part in LEDGER_PARTS) == int(row["pool_bytes"]) == 128 << 20
    html, markdown = ((tmp_path / name).read_text() for name in ("waste.html", "waste.md"))
    assert html.count("<svg") == 2
    assert html.rstrip().endswith("</html>")
    assert "src=" not in html.replace('src="data:image/png;base64,', "")
    assert re.findall(r"\]\((.+?)\)", markdown) == ["ledger.png", "causes.png", "waste.png"]


def test_of_all_models_only_the_traces_lengths_count(scenario, capsys):
    settings = {"trace": scenario.trace}
    print_waste(
        None, settings, all_models=True, groupings=["vllm"], request_lengths=[], threshold_pct=10.0, out=None,
        as_json=False,
    )  # fmt: skip
    assert "max 2,990 tokens. The trace was not replayed: name one model for that." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"groupings": ["ideal"]}, "--grouping: ideal is a bound that no server reaches"),
        ({"request_lengths": [128]}, "--request-len: does not go with --trace"),
        ({"settings": {"kv_cache_memory_bytes": None}}, "--gpu: is needed to replay --trace"),
        ({"settings": {"step_time_s": None}}, "--gpu: is needed to tell how long steps take"),
        ({"settings": {"trace": None}}, "--step-time-s: goes with --trace"),
        ({"name": None, "all_models": True}, "goes with one model"),
    ],
)
def test_a_mistake_is_named(scenario, asked, message):
    with pytest.raises(ScenarioError, match=message):
        ask(scenario, **asked)


def test_a_trace_that_is_not_there_is_named(scenario, tmp_path):
    with pytest.raises(TraceError, match=r"nothing\.jsonl"):
        ask(scenario, settings={"trace": tmp_path / "nothing.jsonl"})
