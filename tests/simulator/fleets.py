"""Small fleets, requests for them, and routers that are told what to do or look whether all is in order."""

from functools import cache

import simpy
from hypothesis import strategies as st

from simulator import Scenario
from simulator.deployment import Deployment, deploy
from simulator.fleet import Fleet, begin
from simulator.fleet_checks import check_now
from simulator.operations import operate
from simulator.router import (
    LeastLoaded,
    OneQueue,
    PowerOfTwoChoices,
    PrefixAware,
    RoundRobin,
    SessionAffinity,
)
from workloads import Trace, TraceRequest

SMALL = Scenario(model="llama-3.1-8b", step_time_s=1.0, num_gpu_blocks_override=40, max_model_len=256, max_num_seqs=4)
"""Room for 39 blocks of 16 tokens."""
ROUTERS = (RoundRobin, LeastLoaded, PowerOfTwoChoices, SessionAffinity, PrefixAware, OneQueue)


def trace_of(*rows: TraceRequest) -> Trace:
    """Prefix ids stand for 16 tokens each."""
    return Trace("test", 16, lambda: iter(rows), len(rows))


def row(name: str, at_s: float = 0.0, prompt: int = 16, output: int = 4, ids=(), session=None) -> TraceRequest:
    return TraceRequest(name, at_s, prompt, output, tuple(ids), session)


def replica_of(result) -> dict[str, int]:
    """Where each request was."""
    return dict(zip(result.requests["request_id"], result.requests["replica"], strict=True))


class Scripted:
    """A router that sends requests where it is told to, and sees what others see."""

    def __init__(self, *choices: int) -> None:
        self.choices = list(choices)
        self.held: list[list[int]] = []

    def choose(self, arrival, replicas):
        self.held.append([replica.held_tokens(arrival) for replica in replicas])
        return self.choices.pop(0)


requests = st.builds(
    lambda at_s, prompt, output, shared, session: (at_s, prompt, output, shared, session),
    st.integers(0, 40), st.integers(1, 200), st.integers(1, 60), st.integers(0, 8), st.sampled_from([None, "x", "y"]),
)  # fmt: skip


def rows_of(drawn) -> list[TraceRequest]:
    """Requests that were drawn, in order of arrival."""
    return [
        row(str(serial), float(at_s), prompt, output, range(shared), session)
        for serial, (at_s, prompt, output, shared, session) in enumerate(sorted(drawn, key=lambda each: each[0]))
    ]


@cache
def deployed(num_blocks: int, async_scheduling: bool, budget: int | None = None) -> Deployment:
    """A small budget of tokens lets decodes miss steps."""
    changes = {"num_gpu_blocks_override": num_blocks, "async_scheduling": async_scheduling}
    return deploy(SMALL.model_copy(update={**changes, "max_num_batched_tokens": budget}))


def serve_all(env: simpy.Environment, fleet: Fleet, *rows: TraceRequest) -> None:
    """Let requests come, and happen what its operations say, until nothing more happens."""
    begin(env, trace_of(*rows), fleet.submit, fleet.close)
    operate(env, fleet)
    env.run()


class Checked:
    """A router that looks whether all is in order before it chooses."""

    def __init__(self, router) -> None:
        self.router = router
        self.fleet: Fleet | None = None

    def choose(self, arrival, replicas):
        # The request that is asked for has left no other trace yet than to wait in the fleet's queue.
        check_now(self.fleet)
        return self.router.choose(arrival, replicas)
