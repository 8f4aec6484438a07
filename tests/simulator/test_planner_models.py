"""A plan of several models: they are alternatives, and the answer is the cheapest fleet of any of them."""

import json
from types import SimpleNamespace

import pytest

from simulator.planner import Choice, Limits, Search
from simulator.planner_study import FleetPlan
from tests.simulator.test_planner import World

SMALL = (
    "--request-rate", "16", "--input-len", "500", "--output-len", "40", "--num-requests", "60", "--seeds", "2",
    "--workers", "1", "--tp", "1", "--max-gpus", "4", "--slo", "ttft.p90=1s", "--slo", "tpot.p90=60ms",
    "--gpu", "l40s", "--gpu", "a100-40gb=1.20",
)  # fmt: skip
ANSWER = ("model", "gpu", "replicas", "dollars_per_hour", "verdict")


@pytest.fixture
def planned(kvplan, tmp_path):
    """Plan these models; gives back plan.json, and what was printed as one line."""

    def plan(*models: str) -> tuple[dict, str]:
        done = kvplan("plan", *models, *SMALL, "--out", "plan")
        assert (done.code, done.err) == (0, "")
        return json.loads((tmp_path / "plan" / "plan.json").read_text()), " ".join(done.out.split())

    return plan


def fleet(each: dict) -> dict:
    return {name: each[name] for name in ANSWER}


def test_the_cheapest_fleet_of_any_model_is_the_answer_and_the_others_say_what_they_cost(planned):
    """The answer of several is the cheapest of the answers of each, and the other's own answer is told beside it."""
    large, small = (fleet(planned(model)[0]["answer"]) for model in ("gemma-3-12b", "llama-3.1-8b"))
    assert large["dollars_per_hour"] > small["dollars_per_hour"]
    both, printed = planned("gemma-3-12b", "llama-3.1-8b")
    assert fleet(both["answer"]) == small
    assert {model: fleet(each) for model, each in both["best_of_others"].items()} == {"gemma-3-12b": large}
    assert both["question"]["models"] == ["gemma-3-12b", "llama-3.1-8b"]
    replicas, gpu, dollars = (large[name] for name in ("replicas", "gpu", "dollars_per_hour"))
    more = f"${dollars:.2f} an hour, +{dollars / small['dollars_per_hour'] - 1:.0%} price."
    assert f"Of gemma-3-12b, the cheapest fleet that was found to hold is {replicas} replica" in printed
    assert f" of gemma-3-12b on {gpu}: {more}" in printed
    assert f"rent this llama-3.1-8b: {small['replicas']} ${small['dollars_per_hour']:.2f}" in printed


def test_a_model_is_ruled_out_only_where_all_that_the_limits_allow_fails():
    """Of `b` what is cheaper than the answer fails, and nobody asked for more; of `c` as many as are allowed fail."""
    choices = [Choice("a", 4.0, 1, guess=1), Choice("b", 1.0, 1, guess=1), Choice("c", 0.5, 4, guess=1)]
    search = Search(choices, World({"a": 1, "b": 7, "c": 9}), Limits(max_gpus=8))
    search.run()
    plan = FleetPlan(search, {name: SimpleNamespace(model=f"model {name}") for name in "abc"}, None)
    assert [plan.is_ruled_out(f"model {name}") for name in "abc"] == [False, False, True]


def test_a_model_that_no_fleet_serves_is_told_so(planned):
    both, printed = planned("llama-3.1-70b", "llama-3.1-8b")
    assert (both["answer"]["model"], both["best_of_others"]) == ("llama-3.1-8b", {"llama-3.1-70b": None})
    assert "Of llama-3.1-70b, no fleet of at most 4 GPUs holds." in printed


def test_one_model_under_two_names_is_one(planned):
    alone, _ = planned("llama-3.1-8b")
    assert planned("llama-3.1-8b", "meta-llama/Llama-3.1-8B")[0] == alone


def test_the_report_has_a_panel_for_each_model(planned, tmp_path):
    planned("gemma-3-12b", "llama-3.1-8b")
    report = (tmp_path / "plan" / "report.html").read_text()
    figure = report[report.index("<svg") : report.index("</svg>")]
    assert [figure.count(model) for model in ("gemma-3-12b", "llama-3.1-8b")] == [1, 1]
    assert '<td class="words">llama-3.1-8b:\n1 × l40s</td>' in report
