"""From the command line's words to prefill and decode replicas, and the link between them."""

from simulator.disaggregation import Servers
from simulator.fleet_options import FleetOptions, check_number, parse_replica, router_of, with_settings
from simulator.link import Link
from simulator.scenario import Scenario, ScenarioError

__all__ = ["disaggregated_of"]

DEFAULT_GBPS = 400.0
"""One network card of an H100 or H200 server."""
DEFAULT_LATENCY_S = 1e-5
BYTES_PER_S_PER_GBPS = 1e9 / 8
ROLES = ("prefill", "decode")
EXAMPLE = "role=prefill,gpu=h200,count=2"


def disaggregated_of(scenario: Scenario, options: FleetOptions) -> tuple[Servers, Servers, Link] | None:
    """Prefill replicas, decode replicas and their link; None where no replica has one of these tasks.

    Raises ScenarioError with one line for a person.
    """
    by_role = _by_flags(scenario, options) or _by_roles(scenario, options)
    if by_role is None:
        for flag, value in (("--link-gbps", options.link_gbps), ("--link-latency-s", options.link_latency_s)):
            if value is not None:
                raise ScenarioError(f"{flag}: nothing travels: add --prefill-replicas 1 --decode-replicas 1")
        return None
    if options.operations.are_stated:
        raise ScenarioError(
            "--outage, --drain, --autoscale and their like: do not go with prefill and decode replicas yet"
        )
    if any(each.kv_offloading_size for scenarios in by_role.values() for each in scenarios):
        raise ScenarioError("--kv-offloading-size: does not go with prefill and decode replicas yet")
    prefill, decode = (Servers(by_role[role], *router_of(scenario, options)) for role in ROLES)
    return prefill, decode, _link(options)


def _by_flags(scenario: Scenario, options: FleetOptions) -> dict[str, list[Scenario]] | None:
    """The same replicas for both tasks, by their numbers."""
    numbers = {"prefill": options.prefill_replicas, "decode": options.decode_replicas}
    if numbers == dict.fromkeys(ROLES):
        return None
    for role, other in (ROLES, ROLES[::-1]):
        if numbers[other] is None:
            raise ScenarioError(f"--{role}-replicas: needs --{other}-replicas beside it")
    if options.num_replicas != 1 or options.replicas:
        flag = "--replica" if options.replicas else "--replicas"
        raise ScenarioError(f"{flag}: does not go with --prefill-replicas; say --replica {EXAMPLE} for each kind")
    for role, number in numbers.items():
        check_number(f"--{role}-replicas", number or 0)
    return {role: [scenario] * (number or 0) for role, number in numbers.items()}


def _by_roles(scenario: Scenario, options: FleetOptions) -> dict[str, list[Scenario]] | None:
    """Replicas that say which task they have."""
    kinds = [(text, *parse_replica(text)) for text in options.replicas]
    roles = [settings.pop("role", None) for _, _, settings in kinds]
    if not any(roles):
        return None
    scenarios: dict[str, list[Scenario]] = {role: [] for role in ROLES}
    for role, (text, count, settings) in zip(roles, kinds, strict=True):
        if role not in scenarios:
            problem = "must have one, too" if role is None else f"must be prefill or decode, got {role!r}"
            raise ScenarioError(f"--replica {text!r}: role {problem}")
        scenarios[role] += [with_settings(scenario, settings, text)] * count
    for role in ROLES:
        check_number(f"--replica role={role}", len(scenarios[role]))
    if options.num_replicas != 1:
        raise ScenarioError("--replicas: does not go with --replica, which counts them itself (count=2)")
    return scenarios


def _link(options: FleetOptions) -> Link:
    gbps = DEFAULT_GBPS if options.link_gbps is None else options.link_gbps
    latency_s = DEFAULT_LATENCY_S if options.link_latency_s is None else options.link_latency_s
    if not 0 < gbps < float("inf"):
        raise ScenarioError(f"--link-gbps: must be a number of gigabits per second above 0, got {gbps}")
    if not 0 <= latency_s < float("inf"):
        raise ScenarioError(f"--link-latency-s: must be a number of seconds of at least 0, got {latency_s}")
    return Link(gbps * BYTES_PER_S_PER_GBPS, latency_s)
