"""From the command line's words to a fleet: which replicas, behind which router."""

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches

from simulator.operations_options import MOST_REPLICAS, OperationOptions
from simulator.router import (
    LeastLoaded,
    OneQueue,
    PowerOfTwoChoices,
    PrefixAware,
    RoundRobin,
    Router,
    SessionAffinity,
)
from simulator.scenario import Scenario, ScenarioError

__all__ = ["FleetOptions", "check_number", "fleet_of", "parse_replica", "router_of", "with_settings"]

SHARED = frozenset(
    {
        "model", "trace", "request_rate", "input_len", "output_len", "num_requests", "rate_scale", "spread_ticks",
        "seed", "concurrency", "concurrent_sessions", "session_rate", "num_sessions", "max_think_time_s",
    }
)  # fmt: skip
"""Settings that are one for the whole fleet."""
EXAMPLE = "gpu=h200,tensor_parallel_size=2,count=2"

ROUTERS: dict[str, Callable[[int], Router]] = {
    "round-robin": lambda seed: RoundRobin(),
    "least-loaded": lambda seed: LeastLoaded(),
    "power-of-two-choices": PowerOfTwoChoices,
    "session-affinity": lambda seed: SessionAffinity(),
    "prefix-aware": lambda seed: PrefixAware(),
    "one-queue": lambda seed: OneQueue(),
}


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What a person says of a fleet; the defaults are those of a single server."""

    num_replicas: int = 1
    replicas: tuple[str, ...] = ()
    """Each: settings in which some replicas differ from the flags, and how many they are."""
    router: str | None = None
    staleness_s: float | None = None
    operations: OperationOptions = field(default_factory=OperationOptions)
    prefill_replicas: int | None = None
    decode_replicas: int | None = None
    """Replicas of which each has one of the two tasks: see `disaggregation_options`."""
    link_gbps: float | None = None
    link_latency_s: float | None = None


def fleet_of(scenario: Scenario, options: FleetOptions) -> tuple[list[Scenario], Router, float] | None:
    """The replicas, their router, and how stale its knowledge is in seconds; None for a single server.

    Raises ScenarioError with one line for a person.
    """
    scenarios = _replicas(scenario, options)
    if len(scenarios) == 1 and not options.replicas and not options.operations.are_stated:
        _refuse_routing(options)
        return None
    return scenarios, *router_of(scenario, options)


def router_of(scenario: Scenario, options: FleetOptions) -> tuple[Router, float]:
    """A router, and how stale its knowledge is in seconds."""
    name = options.router or "round-robin"
    if name not in ROUTERS:
        near = get_close_matches(name, ROUTERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ROUTERS)}"
        raise ScenarioError(f"--router: unknown router {name!r}; {hint}")
    staleness_s = options.staleness_s or 0.0
    if options.staleness_s is not None and name != "prefix-aware":
        raise ScenarioError(f"--router-staleness-s: goes with --router prefix-aware only, not with {name}")
    if not 0 <= staleness_s < float("inf"):
        raise ScenarioError(f"--router-staleness-s: must be a number of seconds of at least 0, got {staleness_s}")
    return ROUTERS[name](scenario.seed), staleness_s


def _refuse_routing(options: FleetOptions) -> None:
    for flag, value in (("--router", options.router), ("--router-staleness-s", options.staleness_s)):
        if value is not None:
            raise ScenarioError(f"{flag}: there is nothing to choose from: add --replicas 2 or --replica")


def _replicas(scenario: Scenario, options: FleetOptions) -> list[Scenario]:
    if options.replicas and options.num_replicas != 1:
        raise ScenarioError("--replicas: does not go with --replica, which counts them itself (count=2)")
    if not options.replicas:
        check_number("--replicas", options.num_replicas)
        return [scenario] * options.num_replicas
    scenarios: list[Scenario] = []
    for text in options.replicas:
        count, settings = parse_replica(text)
        scenarios += [with_settings(scenario, settings, text)] * count
    check_number("--replica", len(scenarios))
    return scenarios


def check_number(flag: str, num_replicas: int) -> None:
    """Raise ScenarioError unless a fleet can have so many replicas."""
    if not 1 <= num_replicas <= MOST_REPLICAS:
        raise ScenarioError(f"{flag}: must make 1 to {MOST_REPLICAS:,} replicas, got {num_replicas:,}")


def parse_replica(text: str) -> tuple[int, dict[str, str]]:
    """(how many, settings by name) of "gpu=h200,tensor_parallel_size=2,count=2"."""
    settings: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name or not value.strip():
            raise ScenarioError(f"--replica: must be settings such as {EXAMPLE}, got {text!r}")
        if name in settings:
            raise ScenarioError(f"--replica: {name} is said twice in {text!r}")
        settings[name] = value.strip()
    count = settings.pop("count", "1")
    if not count.isdigit() or not int(count):
        raise ScenarioError(f"--replica: count must be a whole number of at least 1, got {count!r}")
    return int(count), settings


def with_settings(scenario: Scenario, settings: dict[str, str], text: str) -> Scenario:
    """The scenario with what a `--replica` says; `text` is all of that."""
    known = Scenario.model_fields.keys() - SHARED
    for name in settings:
        if name in SHARED:
            raise ScenarioError(f"--replica: {name} is the same for all replicas: say --{name.replace('_', '-')}")
        if name not in known:
            near = get_close_matches(name, [*known, "count"], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ScenarioError(f"--replica: unknown setting {name!r}{hint}")
    stated = {name: getattr(scenario, name) for name in scenario.model_fields_set}
    try:
        return Scenario(**{**stated, **settings})
    except ScenarioError as error:
        raise ScenarioError(f"--replica {text!r}: {error}") from None
