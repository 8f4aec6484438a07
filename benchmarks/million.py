"""Replay synthetic requests with shared prefixes on llama-3.1-8b; prints what it took, as JSON.

python -m benchmarks.million [NUM_REQUESTS]
"""

import json
import resource
import sys
import time

from simulator import Scenario, simulate
from workloads import Arrivals, Lengths, SharedPrefixes, Traffic, synthesize

RATE_PER_S = 14.0
"""About 60 % of what one H100 sustains at these lengths."""


def main() -> None:
    """Run it."""
    num_requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    traffic = Traffic(
        arrivals=Arrivals.poisson(RATE_PER_S),
        prompts=Lengths.lognormal(500, cv=1.0, max_tokens=16_000),
        outputs=Lengths.lognormal(200, cv=1.0, max_tokens=4_000),
        prefixes=SharedPrefixes(num_prefixes=100, lengths=Lengths.lognormal(500, cv=0.5, max_tokens=4_000)),
    )
    tenths_s: list[float] = []
    """Wall seconds when each tenth of the requests had ended."""

    def mark(_: float, num_ended: int) -> None:
        while num_ended * 10 >= (len(tenths_s) + 1) * num_requests:
            tenths_s.append(time.perf_counter() - started)

    started = time.perf_counter()
    result = simulate(Scenario(model="llama-3.1-8b", gpu="h100-80gb"), synthesize(traffic, num_requests), mark)
    wall_s = time.perf_counter() - started
    assert len(result.requests) == num_requests
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"wall_s": wall_s, "peak_bytes": peak_bytes, "tenths_s": tenths_s}))


if __name__ == "__main__":
    main()
