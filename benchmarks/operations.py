"""Failures, drains and scaling: what they cost a fleet of four in latency, requests, tokens and server time.

python -m benchmarks.operations [NUM_REQUESTS]
"""

import argparse
from collections.abc import Iterator

from benchmarks.fleet import traffic
from benchmarks.tables import print_table
from benchmarks.timing import machine
from simulator import Scenario
from simulator.autoscaling import Autoscaling
from simulator.fleet import simulate_fleet
from simulator.operations import QUIET, Operations
from simulator.outages import Drain, Outage, RandomOutages
from simulator.router import LeastLoaded

CASES = {
    "nothing happens": (4, QUIET),
    "one fails for 2 minutes, requests are tried again": (4, Operations((Outage(1, 180, 120),), cold_start_s=60)),
    "the same, requests are lost": (4, Operations((Outage(1, 180, 120),), cold_start_s=60, max_retries=0)),
    "one is drained for 2 minutes": (4, Operations(drains=(Drain(1, 180, 120),), cold_start_s=60)),
    "each fails every 10 minutes, for 1 minute": (
        4, Operations(random_outages=RandomOutages(600, 60), cold_start_s=60),
    ),
    "from one replica, 30 requests each": (
        1, Operations(autoscaling=Autoscaling(target_running=30), cold_start_s=60),
    ),
    "the same, starting takes 5 s": (1, Operations(autoscaling=Autoscaling(target_running=30), cold_start_s=5)),
}  # fmt: skip


def rows(num_requests: int) -> Iterator[tuple[str, ...]]:
    """The same traffic each time: four times 60 % of what one H100 sustains."""
    yield "what happens", "finished", "lost", "tried again", "lost tokens", "p50 TTFT s", "p99 TTFT s", "server s"
    scenario = Scenario(model="llama-3.1-8b", gpu="h100-80gb")
    for name, (num_replicas, operations) in CASES.items():
        result = simulate_fleet(
            [scenario] * num_replicas, LeastLoaded(), operations=operations, trace=traffic(4, num_requests)
        )
        requests, ttft_s = result.summary["requests"], result.summary["ttft_s"]
        cost = result.summary.get("operations") or {
            "retries": 0, "lost_tokens": 0, "replica_s": num_replicas * result.summary["makespan_s"],
        }  # fmt: skip
        yield (
            name,
            f"{requests['finished']:,}",
            f"{requests.get('lost', 0):,}",
            f"{cost['retries']:,}",
            f"{cost['lost_tokens']:,}",
            f"{ttft_s['p50']:.3f}",
            f"{ttft_s['p99']:.3f}",
            f"{cost['replica_s']:,.0f}",
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_requests", type=int, nargs="?", default=30_000)
    arguments = parser.parse_args()
    print(machine())
    print_table(rows(arguments.num_requests))


if __name__ == "__main__":
    main()
