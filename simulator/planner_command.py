"""`kvplan plan`: the cheapest fleet that keeps an SLO, with the runs that show it."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from models_configs import find_model
from simulator.executors import executors_at
from simulator.fleet_options import FleetOptions, fleet_of
from simulator.planner import Candidate, Limits, Search
from simulator.planner_options import Server, choices_of, gpu_prices, servers_of, tensor_parallels
from simulator.planner_report import candidate_rows, plan_to_json, write_plan
from simulator.planner_runs import FleetEvaluator, TrialRunner, executors_for
from simulator.planner_study import FleetPlan, make_plan
from simulator.planner_traffic import SETTINGS as TRAFFIC_SETTINGS
from simulator.planner_traffic import PlanTraffic, plan_traffic
from simulator.planner_trial import result_of
from simulator.planner_words import cannot_know, fleet_and_model, sentences, trade_in_words
from simulator.progress import PlanProgress
from simulator.run_folder import check_folder, write_run
from simulator.scenario import Scenario, ScenarioError
from simulator.slo import Slo, parse_slo
from simulator.study_store import PointStore

__all__ = ["NONE_HOLDS", "PlanQuestion", "print_plan"]

NONE_HOLDS = 1
"""Exit code where no fleet keeps the SLO: the question was answered, but not with a fleet."""


@dataclass(frozen=True)
class PlanQuestion:
    """What a person asks, as the command line has it."""

    models: Sequence[str]
    settings: Mapping[str, Any]
    """Of a scenario, without model, GPU and ranks; those that say what arrives among them."""
    slo: Sequence[str]
    attainment: float | None = None
    gpus: Sequence[str] = ()
    prices: Path | None = None
    ranks: str | None = None
    max_gpus: int = 256
    spare: int = 0
    router: str | None = None
    num_seeds: int | None = None


@dataclass(frozen=True)
class _Prepared:
    """The same, looked up and checked."""

    slo: Slo
    traffic: PlanTraffic
    servers: Sequence[Server]
    limits: Limits
    router: str | None

    @property
    def by_name(self) -> dict[str, Server]:
        """Servers by the name of their choice."""
        return {server.name: server for server in self.servers}

    def default_folder(self) -> Path:
        """plans/<model>-<a few digits of the question's hash>: the same question comes back to what it has found."""
        question = {
            "slo": self.slo.text,
            "limits": [self.limits.max_gpus, self.limits.spare],
            "servers": [[server.name, server.price.dollars_per_hour, dict(server.settings)] for server in self.servers],
            "traffic": [dict(self.traffic.settings), self.traffic.seeds, self.traffic.demo_rate_per_s],
            "router": self.router,
        }
        digits = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:8]
        name = self.servers[0].model.rstrip("/").split("/")[-1].lower()
        return Path("plans") / f"{name}-{digits}"


def print_plan(
    question: PlanQuestion, *, out: Path | None, executor: str | None, num_workers: int | None, as_json: bool
) -> int:
    """Plan, print, and write the folder; gives back the exit code. Raises ValueError with one line for a person."""
    prepared = _prepare(question)
    executors = executors_for(executors_at(executor, num_workers))
    folder = out or prepared.default_folder()
    check_folder(folder)
    store = PointStore(folder / "trials")
    store.open()
    choices = choices_of(prepared.servers, prepared.traffic, prepared.slo, prepared.limits)
    with executors.open() as pool, PlanProgress(shown=not as_json) as progress:
        runner = TrialRunner(pool, store, progress.update)
        settings = {server.name: server.settings for server in prepared.servers}
        evaluator = FleetEvaluator(runner, prepared.traffic, prepared.slo, settings, prepared.router)
        search = Search(choices, progress.watched(evaluator), prepared.limits)
        plan = make_plan(search, prepared.by_name, evaluator)
        folders = _write_runs(plan, folder)
    text = json.dumps(plan_to_json(plan), indent=2) + "\n"
    files = write_plan(plan, text, folder, folders)
    if as_json:
        sys.stdout.write(text)
    else:
        _print_text(plan, [*files, *(folder / name for name in folders)])
    return NONE_HOLDS if plan.best is None else 0


def _prepare(question: PlanQuestion) -> _Prepared:
    slo = parse_slo(question.slo, question.attainment)
    limits = _limits(question)
    ranks = tensor_parallels(question.ranks)
    prices = gpu_prices(question.gpus, question.prices)
    models = _different(question.models)
    if question.router is not None:
        fleet_of(Scenario(model=models[0]), FleetOptions(num_replicas=2, router=question.router))
    stated = {name: value for name, value in question.settings.items() if value != Scenario.model_fields[name].default}
    traffic = plan_traffic(Scenario(model=models[0], **stated), slo, question.num_seeds)
    own = {name: value for name, value in stated.items() if name not in TRAFFIC_SETTINGS}
    own.setdefault("max_model_len", "auto")
    return _Prepared(slo, traffic, list(servers_of(models, prices, ranks, own)), limits, question.router)


def _different(names: Sequence[str]) -> list[str]:
    """Of names of one and the same model the first. Raises UnknownModelError."""
    first = {find_model(name): name for name in reversed(names)}
    return [name for name in dict.fromkeys(names) if name in first.values()]


def _limits(question: PlanQuestion) -> Limits:
    if question.max_gpus < 1:
        raise ScenarioError(f"--max-gpus: must be at least 1, got {question.max_gpus}")
    if question.spare < 0:
        raise ScenarioError(f"--spare: must be a number of replicas of at least 0, got {question.spare}")
    return Limits(question.max_gpus, question.spare)


# The runs that show it.


def _write_runs(plan: FleetPlan, folder: Path) -> dict[str, str]:
    """The first seed's run of the answer and of what fails beside it, as `kvplan simulate` would write them.

    They run once more, here: a worker may be another machine, with other folders.
    """
    shown: dict[str, tuple[str, Candidate]] = {}
    if plan.best is not None:
        shown["holds"] = ("A run of the fleet that holds", plan.best)
    fails = plan.one_less or plan.nearest_cheaper if plan.best is not None else plan.nearest_miss
    if fails is not None and plan.verdict(fails).refusal is None:
        shown["fails"] = ("A run of the cheaper fleet that does not", fails)
    for name, (_, candidate) in shown.items():
        write_run(result_of(plan.evaluator.trial(candidate, plan.evaluator.traffic.seeds[0])), folder / name)
    return {name: what for name, (what, _) in shown.items()}


# On the terminal.


def _print_text(plan: FleetPlan, files: Sequence[Path]) -> None:
    console = Console()
    for sentence in sentences(plan):
        console.print(sentence, highlight=False)
    console.print()
    headings, rows = candidate_rows(plan)
    if rows:
        console.print(_table(headings, rows))
        console.print()
    for candidate in plan.next_best:
        trade = trade_in_words(plan, candidate)
        console.print(f"{fleet_and_model(plan, candidate)}: {trade}.", highlight=False)
    console.print("\nWhat this plan cannot know:", highlight=False)
    for sentence in cannot_know(plan):
        console.print(f"- {sentence}", highlight=False)
    for file in files:
        console.print(str(file), highlight=False, soft_wrap=True)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for nth, heading in enumerate(headings):
        is_words = nth < 2 or nth == len(headings) - 1
        table.add_column(heading, justify="left" if is_words else "right", no_wrap=nth < len(headings) - 1)
    for row in rows:
        table.add_row(*row)
    return table
