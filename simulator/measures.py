"""The figures by which runs are compared: one name, unit and better direction for tables, pictures and sentences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from simulator.metrics import rounded
from simulator.prices import Price
from simulator.summary_table import format_number, format_seconds, format_share

__all__ = ["COST", "COSTLESS", "MEASURES", "Measure", "dollars", "format_dollars", "gpus_of", "measures_of"]

Values = Mapping[str, Any]


def format_dollars(amount: float | None) -> str:
    """$0.42, $12.30, $1,240."""
    if amount is None:
        return "–"
    return f"${amount:,.0f}" if amount >= 1000 else f"${amount:.2f}" if amount >= 0.1 else f"${amount:.2g}"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run."""

    column: str
    """Its name in tables, with its unit."""
    title: str
    path: tuple[str, ...]
    """Where it is in what is known of a run; see `measures_of`."""
    better: Literal["low", "high"] | None = None
    """None: neither is good in itself."""
    text: Callable[[float | None], str] = format_number
    """For a person, with its unit."""

    def value(self, known: Values) -> Any:
        """The figure; None where it has none."""
        found: Any = known
        for key in self.path:
            found = None if found is None else found.get(key)
        return found


def _latency(what: str, percentile: str) -> Measure:
    name = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "End-to-end latency", "queue": "Time in queue"}[what]
    return Measure(f"{what}_{percentile}_s", f"{name} {percentile}", (f"{what}_s", percentile), "low", format_seconds)


COST = "dollars_per_million_output_tokens"
COSTLESS = "gpu_hours_per_million_output_tokens"
"""Stands in for the cost where a price is not known."""

MEASURES = (
    Measure("arrived", "Requests arrived", ("requests", "arrived")),
    Measure("finished", "Requests finished", ("requests", "finished"), "high"),
    Measure("rejected", "Requests rejected", ("requests", "rejected"), "low"),
    Measure("makespan_s", "Makespan", ("makespan_s",), None, format_seconds),
    Measure("requests_per_s", "Requests/s", ("throughput", "requests_per_s"), "high"),
    Measure("prompt_tokens_per_s", "Prompt tokens/s", ("throughput", "prompt_tokens_per_s"), "high"),
    Measure("output_tokens_per_s", "Output tokens/s", ("throughput", "output_tokens_per_s"), "high"),
    _latency("ttft", "p50"),
    _latency("ttft", "p99"),
    _latency("tpot", "p50"),
    _latency("tpot", "p99"),
    _latency("itl", "p99"),
    _latency("e2e", "p50"),
    _latency("e2e", "p99"),
    _latency("queue", "p99"),
    Measure("prefix_cache_hit_rate", "Prefix cache hit rate", ("prefix_cache_hit_rate",), "high", format_share),
    Measure("preemptions", "Preemptions", ("preemptions", "total"), "low"),
    Measure("kv_cache_usage_mean", "KV cache usage, mean", ("kv_cache_usage", "mean"), None, format_share),
    Measure("kv_cache_usage_max", "KV cache usage, max", ("kv_cache_usage", "max"), None, format_share),
    Measure("wasted_share", "Wasted of held bytes", ("wasted_bytes", "share_of_held"), "low", format_share),
    Measure("running_mean", "Running requests, mean", ("running", "mean")),
    Measure("running_max", "Running requests, max", ("running", "max")),
    Measure("waiting_mean", "Waiting requests, mean", ("waiting", "mean"), "low"),
    Measure("steps", "Steps", ("steps",)),
    Measure("num_blocks", "Blocks of the pool", ("capacity", "num_blocks")),
    Measure("kv_cache_tokens", "KV cache size (tokens)", ("capacity", "kv_cache_tokens"), "high"),
    Measure("max_concurrency", "Requests of the longest length", ("capacity", "max_concurrency"), "high"),
    Measure("num_gpus", "GPUs", ("cost", "num_gpus")),
    Measure(COSTLESS, "GPU hours per million output tokens", ("cost", COSTLESS), "low"),
    Measure("dollars_per_hour", "Cost per hour", ("cost", "dollars_per_hour"), "low", format_dollars),
    Measure(COST, "Cost per million output tokens", ("cost", COST), "low", format_dollars),
    Measure(
        "dollars_per_million_tokens", "Cost per million tokens, prompts included",
        ("cost", "dollars_per_million_tokens"), "low", format_dollars,
    ),
)  # fmt: skip
"""In the order in which tables have them."""


def measures_of(run: Values, prices: Mapping[str, Price]) -> dict[str, Any]:
    """Column to figure of a run that finished; None where it has none, as every cost without a price.

    `run`: what `Result.to_json` says, as summary.json has it.
    """
    known = {**run, "cost": dollars(run, gpus_of(run), prices)}
    return {measure.column: measure.value(known) for measure in MEASURES}


def gpus_of(run: Values) -> dict[str, int]:
    """How many of which accelerator: a server's ranks, or those of all replicas; "unknown" where none is named."""
    gpus: dict[str, int] = {}
    for each in run.get("replicas") or [run]:
        server = each["scenario"]
        ranks = server["tensor_parallel_size"] * server["pipeline_parallel_size"]
        name = server["gpu"] or "unknown"
        gpus[name] = gpus.get(name, 0) + ranks
    return gpus


def dollars(run: Values, gpus: Mapping[str, int], prices: Mapping[str, Price]) -> dict[str, float | None]:
    """What a run's tokens cost at the load that it had: the GPUs are paid for while they idle, too.

    Dollars per million tokens = GPUs x dollars an hour / tokens an hour x 1e6, tokens of finished requests.
    """
    rates = run["throughput"]
    output_per_s, prompt_per_s = (rates[name] or 0.0 for name in ("output_tokens_per_s", "prompt_tokens_per_s"))
    num_gpus = sum(gpus.values())
    has_prices = all(name in prices for name in gpus)
    per_hour = sum(count * prices[name].dollars_per_hour for name, count in gpus.items()) if has_prices else None
    per_million = partial(_per_million, tokens_per_s=output_per_s)
    return {
        "num_gpus": num_gpus,
        COSTLESS: rounded(per_million(float(num_gpus))),
        "dollars_per_hour": rounded(per_hour),
        COST: rounded(per_million(per_hour)),
        "dollars_per_million_tokens": rounded(_per_million(per_hour, output_per_s + prompt_per_s)),
    }


def _per_million(per_hour: float | None, tokens_per_s: float) -> float | None:
    return per_hour / (3600 * tokens_per_s) * 1e6 if per_hour is not None and tokens_per_s else None
