"""Plans of real simulations: the answer of simulating every fleet, by a third of the simulations at most."""

from dataclasses import dataclass

import pytest

from simulator import Scenario
from simulator.executors import ThisProcess
from simulator.planner import Candidate, Limits, Search
from simulator.planner_options import choices_of, gpu_prices, servers_of
from simulator.planner_runs import FleetEvaluator, TrialRunner
from simulator.planner_traffic import plan_traffic
from simulator.slo import parse_slo
from simulator.study_store import PointStore


@dataclass(frozen=True)
class Question:
    """What the small studies ask."""

    model: str
    traffic: dict
    slo: list[str]
    gpus: list[str]
    ranks: tuple[int, ...]
    limits: Limits
    attainment: float | None = None

    def search(self, executor, folder) -> tuple[Search, FleetEvaluator]:
        slo = parse_slo(self.slo, self.attainment)
        traffic = plan_traffic(Scenario(model=self.model, **self.traffic), slo, 3)
        servers = list(servers_of([self.model], gpu_prices(self.gpus, None), self.ranks, {"max_model_len": "auto"}))
        store = PointStore(folder)
        store.open()
        settings = {server.name: server.settings for server in servers}
        evaluator = FleetEvaluator(TrialRunner(executor, store), traffic, slo, settings)
        return Search(choices_of(servers, traffic, slo, self.limits), evaluator, self.limits), evaluator


STUDIES = {
    "long prompts on large GPUs": Question(
        "llama-3.1-8b",
        {"request_rate": 12, "input_len": 4000, "output_len": 60, "num_requests": 40},
        ["ttft.p90=800ms", "tpot.p90=40ms"],
        ["h100-80gb", "a100-80gb", "l40s"],
        (1, 2),
        Limits(max_gpus=6),
    ),
    "answers of which each must come in time": Question(
        "llama-3.1-8b",
        {"request_rate": 30, "input_len": 500, "output_len": 60, "num_requests": 40},
        ["ttft=600ms", "tpot=35ms"],
        ["l40s", "a100-40gb=1.2", "a10g"],
        (1, 2),
        Limits(max_gpus=6),
        attainment=0.95,
    ),
    "chats, and one replica to spare": Question(
        "llama-3.1-8b",
        {"rate_scale": 6.0, "num_requests": 30},
        ["e2e.p90=11s", "ttft.mean=400ms"],
        ["l40s=0.7", "a100-40gb=1.2"],
        (1, 2),
        Limits(max_gpus=12, spare=1),
    ),
}


def exhaustive(search: Search) -> Candidate | None:
    """Ask of every fleet within the limits that can start at all."""
    fleets = [
        Candidate(choice, number)
        for choice in search.choices
        if choice.wall is None
        for number in range(1, search.most_replicas(choice) + 1)
    ]
    return min((each for each in fleets if search.evaluate(each).holds), key=search.rank, default=None)


@pytest.mark.parametrize("name", STUDIES)
def test_the_answer_is_that_of_simulating_everything(name, tmp_path):
    with ThisProcess().open() as executor:
        search, evaluator = STUDIES[name].search(executor, tmp_path / "plan")
        everything, every_evaluator = STUDIES[name].search(executor, tmp_path / "everything")
        best, wanted = search.run(), exhaustive(everything)
    assert wanted is not None
    assert best == wanted
    assert 3 * evaluator.runner.num_simulated <= every_evaluator.runner.num_simulated


def test_a_plan_that_was_begun_before_runs_nothing_twice(tmp_path):
    question = STUDIES["answers of which each must come in time"]
    plans = []
    with ThisProcess().open() as executor:
        for _ in range(2):
            search, evaluator = question.search(executor, tmp_path)
            search.run()
            plans.append((search.best, evaluator.runner.num_simulated, evaluator.runner.num_kept))
    (best, simulated, kept), again = plans
    assert (kept, again) == (0, (best, 0, simulated))
