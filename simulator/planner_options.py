"""From a plan's command line to its choices: models x accelerators with a price x ranks, each with its bounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.deployment import deploy
from simulator.hardware import find_gpu
from simulator.memory import WeightsDoNotFitError
from simulator.mistakes import MISTAKES
from simulator.planner import Choice, Limits
from simulator.planner_bounds import Demand, bound_of, guess_replicas
from simulator.planner_traffic import PlanTraffic
from simulator.prices import Price, known_prices, prices_in, read_prices
from simulator.scenario import Scenario, ScenarioError
from simulator.slo import Slo

__all__ = ["GPUS_OF_A_NODE", "Server", "choices_of", "demands_of", "gpu_prices", "servers_of", "tensor_parallels"]

GPUS_OF_A_NODE = 8
"""Ranks that share layers need a fast link, which reaches no further."""
COMMAND_LINE = "the command line"


def gpu_prices(named: Sequence[str], file: Path | None) -> dict[str, Price]:
    """What an hour of each accelerator costs that may be rented: those that are named, else all with a price.

    `named`: "h100-80gb" or "h200=3.50", several in a text with commas between them; `file`: like `prices.toml`, its
    rows before those. Raises ScenarioError with one line for a person.
    """
    table = {**known_prices(), **({} if file is None else read_prices(file))}
    wanted = [part.strip() for text in named for part in text.split(",")]
    if not wanted:
        return {name: table[name] for name in sorted(table)}
    prices: dict[str, Price] = {}
    for part in wanted:
        name, equals, dollars = part.partition("=")
        gpu = find_gpu(name.strip()).name
        if equals:
            prices[gpu] = _stated_price(gpu, dollars)
        elif gpu in table:
            prices[gpu] = table[gpu]
        else:
            raise ScenarioError(f"--gpu: {gpu} has no price in the table: say what an hour costs, --gpu {gpu}=2.50")
    return prices


def _stated_price(gpu: str, dollars: str) -> Price:
    try:
        value: object = float(dollars.strip().removeprefix("$"))
    except ValueError:
        value = dollars
    prices, mistakes = prices_in({gpu: value}, COMMAND_LINE)
    if mistakes:
        raise ScenarioError(f"--gpu: {gpu} must cost dollars an hour, a number of at least 0, got {dollars!r}")
    return prices[gpu]


def tensor_parallels(text: str | None) -> tuple[int, ...]:
    """The numbers of ranks to try. Raises ScenarioError with one line for a person."""
    if text is None:
        return (1, 2, 4, 8)
    numbers = []
    for part in text.split(","):
        if not part.strip().isdigit() or not 1 <= int(part) <= GPUS_OF_A_NODE:
            raise ScenarioError(
                f"--tp: must be numbers of ranks from 1 to {GPUS_OF_A_NODE} such as 1,2,4, got {text!r}"
            )
        numbers.append(int(part))
    return tuple(sorted(set(numbers)))


@dataclass(frozen=True)
class Server:
    """One replica of a choice: what to rent for it, and what it costs."""

    model: str
    gpu: str
    tensor_parallel: int
    price: Price
    """Of one accelerator."""
    settings: Mapping[str, Any]
    """Of its scenario, without the traffic."""

    @property
    def name(self) -> str:
        """`gemma-3-27b on 2 × h200`."""
        count = f"{self.tensor_parallel} × " if self.tensor_parallel > 1 else ""
        return f"{self.model} on {count}{self.gpu}"

    @property
    def dollars_per_hour(self) -> float:
        """What all of its accelerators cost."""
        return self.price.dollars_per_hour * self.tensor_parallel


def servers_of(
    models: Sequence[str], prices: Mapping[str, Price], ranks: Sequence[int], settings: Mapping[str, Any]
) -> Iterator[Server]:
    """Every combination, in order; `settings` are the same for all."""
    for model in models:
        for gpu, price in prices.items():
            for tensor_parallel in ranks:
                own = {"model": model, "gpu": gpu, "tensor_parallel_size": tensor_parallel}
                yield Server(model, gpu, tensor_parallel, price, {**settings, **own})


def demands_of(traffic: PlanTraffic) -> tuple[list[Demand], int]:
    """(what is measured, for each seed; tokens of the longest request of all)."""
    demands, longest = [], 0
    for seed in traffic.seeds:
        rows, block_tokens = traffic.rows(seed)
        demands.append(Demand.of(rows, block_tokens, traffic.warm_up))
        longest = max([longest, *(row.prompt_tokens + row.output_tokens for row in rows)])
    return demands, longest


def choices_of(servers: Sequence[Server], traffic: PlanTraffic, slo: Slo, limits: Limits) -> list[Choice]:
    """A choice for each server, with what arithmetic says of it."""
    demands, longest = demands_of(traffic)
    return [_choice(server, demands, longest, slo, limits) for server in servers]


def _choice(server: Server, demands: Sequence[Demand], longest: int, slo: Slo, limits: Limits) -> Choice:
    name, dollars, num_gpus = server.name, server.dollars_per_hour, server.tensor_parallel
    try:
        deployment = deploy(Scenario(**server.settings))
    except MISTAKES as error:
        does_not_fit = isinstance(error, WeightsDoNotFitError)
        kind = "the weights do not fit" if does_not_fit else f"the server does not start ({error})"
        return Choice(name, dollars, num_gpus, wall=str(error), wall_kind=kind)
    bound = bound_of(deployment, demands, slo, longest)
    if bound.wall is not None:
        return Choice(name, dollars, num_gpus, wall=bound.wall, wall_ratio=bound.wall_ratio, wall_kind=bound.wall_kind)
    least, most = bound.least_replicas, limits.max_gpus // num_gpus
    guess = guess_replicas(deployment, demands, slo, least, most)
    return Choice(name, dollars, num_gpus, least, bound.reason, guess)
