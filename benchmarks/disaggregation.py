"""The same GPUs as equal replicas and as prefill and decode replicas: python -m benchmarks.disaggregation.

Gemma-3-27B on four H200, prompts of 4,000 tokens and outputs of 200 on average, unless flags say otherwise.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from benchmarks.tables import Row, add_server, print_table, server_of
from benchmarks.timing import machine
from simulator import Scenario
from simulator.disaggregation import Servers, simulate_disaggregated
from simulator.fleet import simulate_fleet
from simulator.link import Link
from simulator.router import LeastLoaded
from workloads import Arrivals, Lengths, Trace, Traffic, synthesize

LATENCY_S = 1e-5


def traffic(rate_per_s: float, prompt: int, output: int, num_requests: int) -> Trace:
    """Poisson arrivals, nothing shared."""
    return synthesize(
        Traffic(
            arrivals=Arrivals.poisson(rate_per_s),
            prompts=Lengths.lognormal(prompt, cv=0.7, max_tokens=8 * prompt),
            outputs=Lengths.lognormal(output, cv=0.7, max_tokens=8 * output),
        ),
        num_requests,
    )


def rows(scenario: Scenario, num_gpus: int, trace: Trace, gbps: tuple[float, ...]) -> Iterator[Row]:
    """One row for each way to use the GPUs."""
    yield "replicas", "link Gb/s", "TTFT p50 s", "p99", "TPOT p50 ms", "p99", "ITL p99 ms", "E2E mean s", "requests/s"
    yield f"{num_gpus} equal", "-", *measures(simulate_fleet([scenario] * num_gpus, LeastLoaded(), trace=trace).summary)
    for num_prefill in range(1, num_gpus):
        for each in gbps:
            prefill, decode = (
                Servers([scenario] * number, LeastLoaded()) for number in (num_prefill, num_gpus - num_prefill)
            )
            result = simulate_disaggregated(prefill, decode, Link(each * 1e9 / 8, LATENCY_S), trace=trace)
            name = f"{num_prefill} prefill, {num_gpus - num_prefill} decode"
            yield name, f"{each:g}", *measures(result.summary)


def measures(summary: dict[str, Any]) -> Row:
    """What is compared."""
    ttft_s, tpot_s = summary["ttft_s"], summary["tpot_s"]
    return (
        f"{ttft_s['p50']:.3f}",
        f"{ttft_s['p99']:.2f}",
        f"{1000 * tpot_s['p50']:.1f}",
        f"{1000 * tpot_s['p99']:.1f}",
        f"{1000 * summary['itl_s']['p99']:.1f}",
        f"{summary['e2e_s']['mean']:.2f}",
        f"{summary['throughput']['requests_per_s']:.2f}",
    )


def main() -> None:
    """Print one table for each rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_server(parser, "gemma-3-27b", "h200")
    parser.add_argument("--num-gpus", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--output", type=int, default=200)
    parser.add_argument("--rates", type=float, nargs="+", default=[2.0, 4.0, 6.0])
    parser.add_argument("--gbps", type=float, nargs="+", default=[400.0, 10.0])
    parser.add_argument("--num-requests", type=int, default=1500)
    given = parser.parse_args()
    print(machine())
    scenario = server_of(given)
    for rate_per_s in given.rates:
        print(f"\n{rate_per_s:g} requests a second")
        trace = traffic(rate_per_s, given.prompt, given.output, given.num_requests)
        print_table(rows(scenario, given.num_gpus, trace, tuple(given.gbps)))


if __name__ == "__main__":
    main()
