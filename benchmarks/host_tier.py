"""What a host-memory tier is worth on a trace, by its size, and what a replay with one costs.

python -m benchmarks.host_tier TRACE.jsonl [--model NAME -tp N] [--rate-scale X] [--num-requests N] [--sizes GIB ...]
    [--bandwidths RATE ...]
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from benchmarks.tables import Row, add_server, print_table, server_of
from benchmarks.timing import machine
from simulator import Result, Scenario, simulate

ENOUGH_BLOCKS = 20_000_000
"""A pool that evicts nothing."""
GIB = 1 << 30

COLUMNS = (
    "host memory",
    "hit rate, device",
    "host",
    "mean TTFT s",
    "p99 TTFT s",
    "mean E2E s",
    "copied out GiB",
    "fetched GiB",
    "link, out",
    "in",
    "mean fetch ms",
    "declined",
    "blocks dropped",
    "CPU s, ratio",
)


def rows(scenario: Scenario, sizes: Sequence[float], bandwidths: Sequence[str]) -> Iterator[Row]:
    """One size after the other, over each link (the GPU's own if none is stated), then a pool without end.

    CPU time is compared with that of the first.
    """
    yield COLUMNS
    first_s = 0.0
    stated = dict(scenario)
    for bandwidth, size in product(bandwidths or [None], sizes):
        started = time.process_time()
        result = simulate(Scenario(**stated | {"kv_offloading_size": size, "kv_offloading_bandwidth": bandwidth}))
        took_s = time.process_time() - started
        first_s = first_s or took_s
        name = f"{size:g} GiB" if bandwidth is None else f"{size:g} GiB over {bandwidth}"
        yield name, *measures(result), f"{took_s:.1f}, {took_s / first_s:.2f}"
    endless = Scenario(**stated | {"num_gpu_blocks_override": ENOUGH_BLOCKS})
    yield "none, a pool without end", *measures(simulate(endless)), "-"


def measures(result: Result) -> Row:
    """What is compared."""
    summary = result.summary
    times = f"{summary['ttft_s']['mean']:.3f}", f"{summary['ttft_s']['p99']:.2f}", f"{summary['e2e_s']['mean']:.2f}"
    host = summary.get("host_tier")
    if host is None:
        return f"{summary['prefix_cache_hit_rate']:.1%}", "-", *times, *("-",) * 7
    fetch_s, link = host["fetch_s"]["mean"], host["link_utilization"]
    return (
        f"{host['device_hit_rate']:.1%}",
        f"{host['host_hit_rate']:.1%}",
        *times,
        f"{host['bytes_out'] / GIB:,.0f}",
        f"{host['bytes_in'] / GIB:,.0f}",
        f"{link['out']:.2%}",
        f"{link['in']:.2%}",
        "-" if fetch_s is None else f"{fetch_s * 1e3:.1f}",
        f"{host['declined_requests']:,}",
        f"{host['dropped_blocks']:,}",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    add_server(parser, "llama-3.1-8b", "h100-80gb")
    parser.add_argument("--rate-scale", type=float, default=0.25)
    parser.add_argument("--num-requests", type=int, default=3000)
    parser.add_argument("--bandwidths", nargs="*", default=[])
    parser.add_argument("--sizes", type=float, nargs="*", default=[0, 100, 500, 2048])
    arguments = parser.parse_args()
    print(machine())
    scenario = server_of(
        arguments,
        trace=arguments.trace,
        rate_scale=arguments.rate_scale,
        num_requests=arguments.num_requests,
        spread_ticks=True,
    )
    print_table(rows(scenario, arguments.sizes, arguments.bandwidths))


if __name__ == "__main__":
    main()
