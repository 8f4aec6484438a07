"""What queueing theory says of one queue before some servers, and what a simulated run says of the same."""

from collections.abc import Iterator
from math import exp, lgamma, log

import numpy as np

from simulator import Result, Scenario, simulate
from simulator.confidence import growth_share, mean_interval
from simulator.fleet import simulate_fleet
from simulator.fleet_result import FleetResult
from simulator.operations import QUIET, Operations
from simulator.planner_runs import is_growing
from simulator.planner_traffic import DEFAULT_SEEDS, WARM_UP
from simulator.router import OneQueue, Router
from workloads import Call, Session, SessionTrace, Trace, TraceRequest

STEP_S = 1.0


def one_at_a_time(step_s: float = STEP_S) -> Scenario:
    """A server that serves one request after the other: its output tokens take a step each, the prompt none more."""
    return Scenario(
        model="llama-3.1-8b", step_time_s=step_s, num_gpu_blocks_override=18, max_model_len=256, max_num_seqs=1,
        async_scheduling=False, enable_prefix_caching=False,
    )  # fmt: skip


def trace_of(arrivals_s: np.ndarray, output_tokens: np.ndarray) -> Trace:
    """Requests with prompts of one token."""

    def rows() -> Iterator[TraceRequest]:
        for number, (arrival_s, tokens) in enumerate(zip(arrivals_s.tolist(), output_tokens.tolist(), strict=True)):
            yield TraceRequest(str(number), arrival_s, 1, tokens)

    return Trace("queue", None, rows, len(arrivals_s))


def poisson_s(rate_per_s: float, num_requests: int, seed: int) -> np.ndarray:
    """Times of arrival."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, num_requests))


def run_queue(
    arrivals_s: np.ndarray,
    output_tokens: np.ndarray | None = None,
    num_servers: int = 1,
    router: Router | None = None,
    operations: Operations = QUIET,
) -> FleetResult:
    """Serve them; one step each unless their lengths are given, in one queue unless a router is."""
    if output_tokens is None:
        output_tokens = np.ones(len(arrivals_s), dtype=int)
    trace = trace_of(arrivals_s, output_tokens)
    return simulate_fleet([one_at_a_time()] * num_servers, router or OneQueue(), trace=trace, operations=operations)


def waits_s(result: FleetResult) -> np.ndarray:
    """Time in queue of each request, in order of arrival."""
    requests = result.tables["requests"]
    waited_s = requests["first_scheduled_s"] - requests["arrival_s"]
    return waited_s[np.argsort(requests["arrival_s"], kind="stable")]


def lindley_s(arrivals_s: np.ndarray, services_s: np.ndarray) -> np.ndarray:
    """Waiting times of one server, first come first served: W' = max(0, W + S - A) (Lindley, 1952)."""
    waits = np.zeros(len(arrivals_s))
    gaps_s = np.diff(arrivals_s)
    for number, gap_s in enumerate(gaps_s):
        waits[number + 1] = max(0.0, waits[number] + services_s[number] - gap_s)
    return waits


def md1_mean_wait_s(load: float, service_s: float = STEP_S) -> float:
    """Pollaczek and Khinchine's mean for a constant service time."""
    return load * service_s / (2 * (1 - load))


def said_to_grow(load: float, num_requests: int, num_plans: int, seed: int) -> float:
    """The share of plans, each of as many runs as a plan has, in which an M/D/1 queue of this load is said to grow."""
    random = np.random.default_rng(seed)
    plans = (
        mean_interval([_growth(load, num_requests, random) for _ in range(DEFAULT_SEEDS)]) for _ in range(num_plans)
    )
    return sum(is_growing(growth, DEFAULT_SEEDS, is_steady=True) for growth in plans) / num_plans


def _growth(load: float, num_requests: int, random: np.random.Generator) -> float:
    """Of one run, the start left out as a plan does."""
    arrivals_s = np.cumsum(random.exponential(STEP_S / load, num_requests))
    ends_s = arrivals_s + lindley_s(arrivals_s, np.full(num_requests, STEP_S)) + STEP_S
    kept = slice(int(num_requests * WARM_UP), None)
    return growth_share(arrivals_s[kept], ends_s[kept])


def mdc_mean_wait_s(load: float, num_servers: int, service_s: float = STEP_S) -> float:
    """M/D/c (Crommelin, 1932): after a service time those are there who found no server, and who arrived meanwhile.

    So the number there is a Markov chain from one service time to the next; the mean queue over the rate of arrivals
    is the mean wait (Little).
    """
    arrivals = load * num_servers  # in one service time
    size = num_servers + int(60 / (1 - load))
    counts = np.arange(size)
    poisson = np.exp(counts * log(arrivals) - arrivals - np.array([lgamma(count + 1) for count in counts]))
    there = np.zeros(size)
    there[0] = 1.0
    for _ in range(100_000):
        left = np.zeros(size)
        left[0] = there[: num_servers + 1].sum()
        left[1 : size - num_servers] = there[num_servers + 1 :]
        after = np.convolve(left, poisson)[:size]
        after /= after.sum()
        if np.abs(after - there).max() < 1e-13:
            break
        there = after
    queue = float((np.maximum(counts - num_servers, 0) * there).sum())
    return queue / arrivals * service_s


def interval_95_s(waited_s: np.ndarray, num_batches: int = 20) -> tuple[float, float]:
    """95 % confidence interval of the mean wait, from the means of consecutive batches (Student's t, 19 degrees)."""
    means = waited_s[: len(waited_s) // num_batches * num_batches].reshape(num_batches, -1).mean(axis=1)
    half = 2.093 * means.std(ddof=1) / num_batches**0.5
    return float(means.mean() - half), float(means.mean() + half)


def completion_s(service_s: float, mtbf_s: float, mttr_s: float) -> float:
    """Mean time from the start of a service to its end on a server that breaks and starts it again from scratch.

    Preemptive repeat with identical services (Gaver, 1962): each try lasts until the service ends or a breakdown comes.
    """
    return (exp(service_s / mtbf_s) - 1) * (mtbf_s + mttr_s)


# A closed network: users who think, then queue before one server (the machine repair model).

SERVICE_TOKENS = 50
"""Of a call on average, a second each: geometric, so that it is nearly exponential."""


def repair_shop(num_users: int, think_s: float, calls_per_session: int, seed: int = 0) -> Result:
    """So many users make so many calls each, one call served at a time, and think exponential times between."""
    rng = np.random.default_rng(seed)
    size = num_users, calls_per_session
    tokens, thoughts_s = rng.geometric(1 / SERVICE_TOKENS, size).tolist(), rng.exponential(think_s, size).tolist()
    rows = [
        Session(
            str(user),
            tuple(
                Call(f"{user}/{number}", 1, num_tokens, thought_s)
                for number, (num_tokens, thought_s) in enumerate(zip(*pairs, strict=True))
            ),
        )
        for user, pairs in enumerate(zip(tokens, thoughts_s, strict=True))
    ]
    server = one_at_a_time().model_copy(
        update={"max_model_len": 4096, "num_gpu_blocks_override": 300, "concurrent_sessions": num_users}
    )
    return simulate(server, SessionTrace("users", None, lambda: iter(rows)))


def throughput_per_s(result: Result) -> float:
    """Calls that ended a second, while all users were there."""
    all_there_s = float(result.tables["sessions"]["end_s"].min())
    return float((result.tables["requests"]["finish_s"] <= all_there_s).sum()) / all_there_s


def machine_repair_per_s(num_users: int, think_s: float) -> float:
    """Calls a second of M/M/1//N: the server idles with p0 = 1 / sum of N!/(N-k)! (S/Z)^k over k = 0 to N."""
    terms = [1.0]
    for there in range(num_users):
        terms.append(terms[-1] * (num_users - there) * SERVICE_TOKENS / think_s)
    return (1 - 1 / sum(terms)) / SERVICE_TOKENS
