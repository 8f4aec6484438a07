"""What binds is told by loosening one thing at a time."""

from simulator import Scenario
from simulator.executors import ThisProcess
from simulator.planner import Limits, Search
from simulator.planner_options import choices_of, gpu_prices, servers_of
from simulator.planner_runs import FleetEvaluator, TrialRunner
from simulator.planner_study import make_plan
from simulator.planner_traffic import plan_traffic
from simulator.slo import parse_slo
from simulator.study_store import PointStore


def reliefs_of(folder, **settings) -> set[str]:
    """What a plan for a few prompts on one kind of server has loosened."""
    traffic = plan_traffic(
        Scenario(model="llama-3.1-8b", request_rate=2, input_len=1000, output_len=5, num_requests=20),
        slo := parse_slo(["ttft.p90=2s"]),
        num_seeds=2,
    )
    prices = gpu_prices(["h100-80gb"], None)
    kinds = servers_of(["llama-3.1-8b"], prices, (1,), {"max_model_len": 2048, **settings})
    servers = {server.name: server for server in kinds}
    store = PointStore(folder)
    store.open()
    with ThisProcess().open() as pool:
        by_name = {name: server.settings for name, server in servers.items()}
        evaluator = FleetEvaluator(TrialRunner(pool, store), traffic, slo, by_name)
        search = Search(choices_of(list(servers.values()), traffic, slo, Limits()), evaluator)
        return {relief.what for relief in make_plan(search, servers, evaluator).reliefs}


def test_max_num_seqs_is_loosened_only_where_the_token_budget_can_stay(tmp_path):
    """A budget is at least as large as `max_num_seqs`: raised with it, what the budget does would be its own."""
    roomy = reliefs_of(tmp_path / "roomy", max_num_seqs=256, max_num_batched_tokens=512)
    tight = reliefs_of(tmp_path / "tight", max_num_seqs=257, max_num_batched_tokens=512)
    assert roomy - tight == {"max_num_seqs"}
