"""From the command line's words to a fleet's operations: what fails, what is drained, how it scales.

All of them are of one form: `replica=1,at=600,for=120`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from simulator.autoscaling import Autoscaling
from simulator.operations import MOST_RETRIES, Operations
from simulator.outages import Drain, Outage, RandomOutages
from simulator.scenario import ScenarioError

__all__ = ["MOST_REPLICAS", "OperationOptions", "operations_of"]

MOST_REPLICAS = 1024

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class OperationOptions:
    """What a person says of a fleet's operations; by default nothing."""

    outages: tuple[str, ...] = ()
    random_outages: str | None = None
    on_failure: str | None = None
    drains: tuple[str, ...] = ()
    cold_start_s: float | None = None
    autoscale: str | None = None

    @property
    def are_stated(self) -> bool:
        """Whether anything may happen to replicas: then a single one is a fleet, too."""
        return self != OperationOptions()


def operations_of(options: OperationOptions, num_replicas: int, seed: int) -> Operations:
    """The operations of a fleet that starts with so many replicas. Raises ScenarioError with one line for a person."""
    cold_start_s = options.cold_start_s or 0.0
    if not 0 <= cold_start_s < float("inf"):
        raise ScenarioError(f"--cold-start-s: must be a number of seconds of at least 0, got {cold_start_s:g}")
    autoscaling = None if options.autoscale is None else _autoscaling(options.autoscale, num_replicas)
    most = num_replicas if autoscaling is None else autoscaling.max_replicas
    outages = tuple(_timed("--outage", text, Outage, most) for text in options.outages)
    drains = tuple(_timed("--drain", text, Drain, most) for text in options.drains)
    random_outages = None if options.random_outages is None else _random_outages(options.random_outages, seed)
    max_retries = _max_retries(options.on_failure)
    may_fail = bool(outages or random_outages)
    if options.on_failure is not None and not may_fail:
        raise ScenarioError("--on-failure: nothing fails: add --outage or --random-outages")
    if options.cold_start_s is not None and not (may_fail or drains or autoscaling):
        raise ScenarioError("--cold-start-s: no replica starts: add --outage, --random-outages, --drain or --autoscale")
    return Operations(outages, random_outages, drains, autoscaling, cold_start_s, max_retries)


def _max_retries(text: str | None) -> int:
    flag = "--on-failure"
    if text in {None, "retry"}:
        return MOST_RETRIES
    if text == "lose":
        return 0
    name, equals, value = str(text).partition("=")
    if name == "retry" and equals:
        return _whole(flag, name, value)
    near = get_close_matches(str(text), ("retry", "lose"), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "known: retry, retry=3 (at most so often), lose"
    raise ScenarioError(f"{flag}: unknown policy {text!r}; {hint}")


def _timed(flag: str, text: str, kind: Callable[[int, float, float | None], Made], num_replicas: int) -> Made:
    """An outage or a drain: replica=1,at=600,for=120."""
    example = "replica=1,at=600,for=120"
    values = _parse(flag, text, ("replica", "at", "for"), example)
    for name in ("replica", "at"):
        if name not in values:
            raise ScenarioError(f"{flag}: needs {name}, as in {example}, got {text!r}")
    number = _whole(flag, "replica", values["replica"])
    if number >= num_replicas:
        last = "there is replica 0 only" if num_replicas == 1 else f"there are replicas 0 to {num_replicas - 1:,}"
        raise ScenarioError(f"{flag}: no replica {number:,}: {last}")
    for_s = _number(flag, "for", values["for"]) if "for" in values else None
    return _made(flag, lambda: kind(number, _number(flag, "at", values["at"]), for_s))


def _random_outages(text: str, seed: int) -> RandomOutages:
    flag, example = "--random-outages", "mtbf=3600,mttr=120"
    values = _parse(flag, text, ("mtbf", "mttr"), example)
    if len(values) < 2:
        raise ScenarioError(f"{flag}: needs mtbf and mttr, as in {example}, got {text!r}")
    mtbf_s, mttr_s = (_number(flag, name, values[name]) for name in ("mtbf", "mttr"))
    return _made(flag, lambda: RandomOutages(mtbf_s, mttr_s, seed))


def _autoscaling(text: str, num_replicas: int) -> Autoscaling:
    flag, example = "--autoscale", "running=32,min=1,max=8,every=15,cooldown=60"
    values = _parse(flag, text, tuple(RULE_FIELDS), example)
    stated: dict[str, Any] = {
        field: read(flag, name, values[name]) for name, (field, read) in RULE_FIELDS.items() if name in values
    }
    rule = _made(flag, lambda: Autoscaling(**stated))
    if rule.max_replicas > MOST_REPLICAS:
        raise ScenarioError(f"{flag}: max must be at most {MOST_REPLICAS:,}, got {rule.max_replicas:,}")
    if not rule.min_replicas <= num_replicas <= rule.max_replicas:
        bounds = f"min={rule.min_replicas} and max={rule.max_replicas}"
        nearest = min(max(num_replicas, rule.min_replicas), rule.max_replicas)
        raise ScenarioError(
            f"{flag}: the fleet starts with {num_replicas}, which is not between {bounds}: say --replicas {nearest}"
        )
    return rule


def _made(flag: str, make: Callable[[], Made]) -> Made:
    """What `make` makes; what it refuses, it refuses under this flag."""
    try:
        return make()
    except ScenarioError:
        raise
    except ValueError as error:
        raise ScenarioError(f"{flag}: {error}") from None


def _parse(flag: str, text: str, known: tuple[str, ...], example: str) -> dict[str, str]:
    """Name to text of "replica=1,at=600"."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("_", "-")
        if not equals or not name or not value:
            raise ScenarioError(f"{flag}: must be of the form {example}, got {text!r}")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ScenarioError(f"{flag}: unknown setting {name!r}; {hint}")
        if name in values:
            raise ScenarioError(f"{flag}: {name} is said twice in {text!r}")
        values[name] = value
    return values


def _number(flag: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScenarioError(f"{flag}: {name} must be a number, got {text!r}") from None


def _whole(flag: str, name: str, text: str) -> int:
    if not text.isdecimal():
        raise ScenarioError(f"{flag}: {name} must be a whole number of at least 0, got {text!r}")
    return int(text)


RULE_FIELDS: dict[str, tuple[str, Callable[[str, str, str], float]]] = {
    "running": ("target_running", _number),
    "kv-usage": ("target_kv_usage", _number),
    "min": ("min_replicas", _whole),
    "max": ("max_replicas", _whole),
    "every": ("every_s", _number),
    "cooldown": ("cooldown_s", _number),
}
"""What --autoscale calls them, and how each is read."""
