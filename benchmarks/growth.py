"""Which queues a plan says to grow: one server at many loads, and how often the planner's rule calls its queue growing.

python -m benchmarks.growth
python -m benchmarks.growth --plans 1000
"""

import argparse
from collections.abc import Iterator

from benchmarks.tables import Row, print_table
from simulator.summary_table import format_share
from tests.simulator.queues import said_to_grow

SEED = 1
LOADS = (0.5, 0.8, 0.9, 1.05, 1.1, 1.2)
NUM_REQUESTS = (500, 1000, 2000, 4000)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=300)
    print_table(rows(parser.parse_args().plans))


def rows(num_plans: int) -> Iterator[Row]:
    """The share of plans that are said to grow, for each load and number of requests of a seed."""
    yield "load", *(f"{num:,} requests a seed" for num in NUM_REQUESTS)
    for load in LOADS:
        shares = (said_to_grow(load, num, num_plans, SEED) for num in NUM_REQUESTS)
        yield f"{load:g}", *map(format_share, shares)


if __name__ == "__main__":
    main()
