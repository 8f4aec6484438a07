"""Fleets: what a request costs beside a single replica's, and what routers are worth on the Mooncake trace.

python -m benchmarks.fleet cost [NUM_REQUESTS]
python -m benchmarks.fleet queues [NUM_REQUESTS]
python -m benchmarks.fleet routers TRACE.jsonl [--model NAME -tp N] [--rate-scale X] [--num-requests N]
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables import Row, add_server, print_table, server_of
from benchmarks.timing import machine
from simulator import Scenario, simulate
from simulator.fleet import simulate_fleet
from simulator.router import (
    LeastLoaded,
    PowerOfTwoChoices,
    PrefixAware,
    RoundRobin,
    Router,
    SessionAffinity,
    router_name,
)
from tests.simulator.queues import (
    interval_95_s,
    md1_mean_wait_s,
    mdc_mean_wait_s,
    poisson_s,
    run_queue,
    waits_s,
)
from workloads import Arrivals, Lengths, SharedPrefixes, Trace, Traffic, synthesize

RATE_PER_S = 14.0
"""About 60 % of what one H100 sustains at these lengths."""
NUM_REPLICAS = 4


def traffic(num_replicas: int, num_requests: int) -> Trace:
    """The traffic of the benchmark with a million requests, so many times as fast."""
    shared = SharedPrefixes(num_prefixes=100, lengths=Lengths.lognormal(500, cv=0.5, max_tokens=4_000))
    return synthesize(
        Traffic(
            arrivals=Arrivals.poisson(RATE_PER_S * num_replicas),
            prompts=Lengths.lognormal(500, cv=1.0, max_tokens=16_000),
            outputs=Lengths.lognormal(200, cv=1.0, max_tokens=4_000),
            prefixes=shared,
        ),
        num_requests,
    )


def cost_rows(num_requests: int) -> Iterator[Row]:
    """Eight replicas under each router, and before each run one at the same load: the machine's speed drifts."""
    scenario = Scenario(model="llama-3.1-8b", gpu="h100-80gb")
    yield "router", "us per request (CPU)", "of one replica", "ratio"
    routers: list[Router] = [RoundRobin(), LeastLoaded(), PowerOfTwoChoices(), SessionAffinity(), PrefixAware()]
    for router, staleness_s in [*((router, 0.0) for router in routers), (PrefixAware(), 1.0)]:
        started_s = time.process_time()
        simulate(scenario, traffic(1, num_requests))
        between_s = time.process_time()
        simulate_fleet([scenario] * 8, router, staleness_s, trace=traffic(8, num_requests))
        one_s, fleet_s = between_s - started_s, time.process_time() - between_s
        name = f"{router_name(router)}, {staleness_s:g} s stale"
        yield name, f"{fleet_s / num_requests * 1e6:.0f}", f"{one_s / num_requests * 1e6:.0f}", f"{fleet_s / one_s:.2f}"


def router_rows(scenario: Scenario, routers: Sequence[tuple[Router, float]]) -> Iterator[Row]:
    """The trace on four replicas under each router, then on one with the pool and the ranks of four."""
    yield "router", "hit rate", "mean TTFT s", "p99 TTFT s", "mean E2E s", "running mean", "requests, least and most"
    for router, staleness_s in routers:
        result = simulate_fleet([scenario] * NUM_REPLICAS, router, staleness_s)
        counts = [replica.summary["requests"]["finished"] for replica in result.replicas]
        name = router_name(router)
        if isinstance(router, PrefixAware):
            name += f", {router.request_tokens:g} tokens a request, {staleness_s:g} s stale"
        yield name, *measures(result.summary), f"{min(counts)}, {max(counts)}"
    blocks = result.replicas[0].capacity["num_blocks"]
    one = scenario.model_copy(
        update={
            "num_gpu_blocks_override": NUM_REPLICAS * (blocks - 1) + 1,
            "tensor_parallel_size": NUM_REPLICAS * scenario.tensor_parallel_size,
        }
    )
    yield f"one replica, {NUM_REPLICAS} times the pool and the ranks", *measures(simulate(one).summary), "-"


def queue_rows(num_requests: int) -> Iterator[Row]:
    """Mean waits in service times beside theory's: M/D/1 by Pollaczek and Khinchine, M/D/c by Crommelin."""
    yield "servers", "load", "requests", "mean wait", "95 % interval", "theory", "difference"
    for num_servers, load in ((1, 0.3), (1, 0.6), (1, 0.9), (2, 0.8), (4, 0.8), (8, 0.9)):
        arrivals_s = poisson_s(load * num_servers, num_requests, seed=0)
        waited_s = waits_s(run_queue(arrivals_s, num_servers=num_servers))
        low_s, high_s = interval_95_s(waited_s)
        theory_s = md1_mean_wait_s(load) if num_servers == 1 else mdc_mean_wait_s(load, num_servers)
        mean_s = waited_s.mean()
        yield (
            f"{num_servers}",
            f"{load}",
            f"{num_requests:,}",
            f"{mean_s:.4f}",
            f"{low_s:.4f} to {high_s:.4f}",
            f"{theory_s:.4f}",
            f"{mean_s / theory_s - 1:+.2%}",
        )


def measures(summary: dict[str, Any]) -> Row:
    """What is compared."""
    ttft_s, e2e_s = summary["ttft_s"], summary["e2e_s"]
    return (
        f"{summary['prefix_cache_hit_rate']:.4f}",
        f"{ttft_s['mean']:.3f}",
        f"{ttft_s['p99']:.3f}",
        f"{e2e_s['mean']:.2f}",
        f"{summary['running']['mean']:.1f}",
    )


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("cost").add_argument("num_requests", type=int, nargs="?", default=100_000)
    parts.add_parser("queues").add_argument("num_requests", type=int, nargs="?", default=400_000)
    routing = parts.add_parser("routers")
    routing.add_argument("trace", type=Path)
    add_server(routing, "llama-3.1-8b", "h100-80gb")
    routing.add_argument("--rate-scale", type=float, default=1.0)
    routing.add_argument("--num-requests", type=int)
    routing.add_argument("--request-tokens", type=float, nargs="*", default=[PrefixAware().request_tokens])
    arguments = parser.parse_args()
    print(machine())
    if arguments.part == "cost":
        rows = cost_rows(arguments.num_requests)
    elif arguments.part == "queues":
        rows = queue_rows(arguments.num_requests)
    else:
        scenario = server_of(
            arguments,
            trace=arguments.trace,
            rate_scale=arguments.rate_scale,
            num_requests=arguments.num_requests,
            spread_ticks=True,
        )
        aware = [(PrefixAware(tokens), 0.0) for tokens in arguments.request_tokens]
        stale = [(PrefixAware(), staleness_s) for staleness_s in (1.0, 10.0, 60.0)]
        rows = router_rows(
            scenario, [(RoundRobin(), 0.0), (LeastLoaded(), 0.0), (PowerOfTwoChoices(), 0.0), *aware, *stale]
        )
    print_table(rows)


if __name__ == "__main__":
    main()
