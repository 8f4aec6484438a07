"""Sessions over a fleet: what routers are worth to coding agents, and what a closed network of queues should do.

python -m benchmarks.sessions agents TRACE.jsonl.gz [--model NAME -tp N] [--concurrent-sessions N] [--num-sessions N]
python -m benchmarks.sessions queues [CALLS_PER_SESSION]
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import Row, add_server, print_table, server_of
from benchmarks.timing import machine
from simulator import Scenario
from simulator.fleet import simulate_fleet
from simulator.router import LeastLoaded, PrefixAware, RoundRobin, Router, SessionAffinity, router_name
from tests.simulator.queues import machine_repair_per_s, repair_shop, throughput_per_s

NUM_REPLICAS = 4


def agent_rows(scenario: Scenario) -> Iterator[Row]:
    """The same sessions on four replicas under each router."""
    yield (
        "router", "hit rate", "mean TTFT s", "p99 TTFT s", "mean E2E s", "mean session s", "in the model s", "of it",
        "sessions", "calls", "rejected", "calls, least and most", "wall s",
    )  # fmt: skip
    routers: list[tuple[Router, float]] = [
        (RoundRobin(), 0.0),
        (LeastLoaded(), 0.0),
        (SessionAffinity(), 0.0),
        (PrefixAware(), 0.0),
        (PrefixAware(), 60.0),
    ]
    for router, staleness_s in routers:
        started = time.perf_counter()
        result = simulate_fleet([scenario] * NUM_REPLICAS, router, staleness_s)
        took_s = time.perf_counter() - started
        summary = result.summary
        sessions, requests, ttft_s = summary["sessions"], summary["requests"], summary["ttft_s"]
        counts = [replica["requests"]["finished"] for replica in summary["replicas"]]
        yield (
            router_name(router) + (f", {staleness_s:g} s stale" if staleness_s else ""),
            f"{summary['prefix_cache_hit_rate']:.4f}",
            f"{ttft_s['mean']:.3f}",
            f"{ttft_s['p99']:.2f}",
            f"{summary['e2e_s']['mean']:.2f}",
            f"{sessions['duration_s']['mean']:.0f}",
            f"{sessions['model_s']['mean']:.0f}",
            f"{sessions['model_share']:.3f}",
            f"{sessions['completed']:,}",
            f"{requests['arrived']:,}",
            f"{requests['rejected']:,}",
            f"{min(counts):,}, {max(counts):,}",
            f"{took_s:.0f}",
        )


def queue_rows(calls_per_session: int) -> Iterator[Row]:
    """Calls a second of users who think, beside theory's (M/M/1//N, the machine repair model)."""
    yield "users", "think time", "calls", "calls a second", "theory", "difference"
    for num_users, think_s in ((1, 100.0), (2, 50.0), (4, 100.0), (8, 400.0), (8, 100.0)):
        measured = throughput_per_s(repair_shop(num_users, think_s, calls_per_session))
        theory = machine_repair_per_s(num_users, think_s)
        yield (
            f"{num_users}",
            f"{think_s:g} s",
            f"{num_users * calls_per_session:,}",
            f"{measured:.5f}",
            f"{theory:.5f}",
            f"{measured / theory - 1:+.2%}",
        )


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("queues").add_argument("calls_per_session", type=int, nargs="?", default=20_000)
    agents = parts.add_parser("agents")
    agents.add_argument("trace", type=Path)
    add_server(agents, "qwen3.6-27b-fp8", "h200", "fp8")
    agents.add_argument("--concurrent-sessions", type=int, default=64)
    agents.add_argument("--num-sessions", type=int, default=256)
    agents.add_argument("--max-think-time-s", type=float, default=300.0)
    arguments = parser.parse_args()
    print(machine())
    if arguments.part == "queues":
        rows = queue_rows(arguments.calls_per_session)
    else:
        scenario = server_of(
            arguments,
            trace=arguments.trace,
            concurrent_sessions=arguments.concurrent_sessions,
            num_sessions=arguments.num_sessions,
            max_think_time_s=arguments.max_think_time_s,
        )
        rows = agent_rows(scenario)
    print_table(rows)


if __name__ == "__main__":
    main()
