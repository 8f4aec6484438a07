"""Plans of real simulations: the answer of simulating every fleet, by a third of the simulations at most."""

from dataclasses import dataclass

import pytest

from simulator import Scenario
from simulator.executors import ThisProcess
from simulator.planner import Candidate, Limits, Search
from simulator.planner_options import choices_of, gpu_prices, servers_of
from simulator.planner_runs import FleetEvaluator, TrialRunner
from simulator.planner_study import make_plan
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
        {"request_rate": 12, "input_len": 4000, "output_len": 60, "num_requests": 90},
        ["ttft.p90=800ms", "tpot.p90=40ms"],
        ["h100-80gb", "a100-80gb", "l40s"],
        (1, 2),
        Limits(max_gpus=8),
    ),
    "long answers on small GPUs": Question(
        "gemma-3-1b",
        {"request_rate": 30, "input_len": 200, "output_len": 150, "num_requests": 90},
        ["ttft=300ms", "tpot=12ms"],
        ["l4=0.5", "a10g", "rtx-4090", "a100-40gb"],
        (1,),
        Limits(max_gpus=10),
        attainment=0.95,
    ),
    "chats, and one replica to spare": Question(
        "qwen3-0.6b",
        {"rate_scale": 14.0, "num_requests": 120},
        ["e2e.p90=4s", "ttft.mean=400ms"],
        ["l4=0.5", "a10g", "l40s"],
        (1, 2),
        Limits(max_gpus=10, spare=1),
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
    question = STUDIES["long answers on small GPUs"]
    plans = []
    with ThisProcess().open() as executor:
        for _ in range(2):
            search, evaluator = question.search(executor, tmp_path)
            make_plan(search, {}, evaluator) if False else search.run()
            plans.append((search.best, evaluator.runner.num_simulated, evaluator.runner.num_kept))
    (best, simulated, kept), again = plans
    assert (kept, again) == (0, (best, 0, simulated))
