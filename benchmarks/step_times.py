"""What asking for step times costs within a replay: the mean time of a call, by model of step times.

On a quiet machine: it is read off the clock.

python -m benchmarks.step_times
python -m benchmarks.step_times --model gpt-oss-120b --gpu h200 -tp 2
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

from benchmarks.tables import Row, add_server, print_table, server_of
from simulator.batch import Batch
from simulator.deployment import deploy
from simulator.engine import simulate_on, workload_of
from simulator.latency import StepTimes, Work

NUM_REQUESTS = 5000
TRAFFIC = {"request_rate": 8.0, "input_len": 2000, "output_len": 200}


class Timed:
    """Step times that note how often they are asked, and how long they took to answer."""

    def __init__(self, asked: StepTimes) -> None:
        self._asked = asked
        self.num_calls = self.num_steps = 0
        self.seconds = 0.0

    @property
    def source(self) -> str:
        """Of those that are timed."""
        return self._asked.source

    def durations_s(self, batch: Batch) -> list[float]:
        """As asked for."""
        start_s = perf_counter()
        durations_s = self._asked.durations_s(batch)
        self.seconds += perf_counter() - start_s
        self.num_calls += 1
        self.num_steps += len(durations_s)
        return durations_s

    def least_s(self, work: Work) -> float:
        """As asked for."""
        return self._asked.least_s(work)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_times", description=__doc__.splitlines()[0])
    add_server(parser, "llama-3.1-8b", "h100-80gb")
    print_table(rows(parser.parse_args()))


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Steady traffic, replayed with each; tables of kernels fill on the way."""
    yield "step times", "calls", "steps", "microseconds a call", "of the replay"
    for name in ("roofline", "silicon"):
        deployment = deploy(server_of(arguments, step_times=name, num_requests=NUM_REQUESTS, **TRAFFIC))
        timed = Timed(deployment.step_times)
        start_s = perf_counter()
        simulate_on(replace(deployment, other_step_times=timed), workload_of(deployment.scenario))
        share = timed.seconds / (perf_counter() - start_s)
        microseconds = 1e6 * timed.seconds / timed.num_calls
        yield timed.source, f"{timed.num_calls:,}", f"{timed.num_steps:,}", f"{microseconds:.1f}", f"{share:.0%}"


if __name__ == "__main__":
    main()
