"""Keys and values that arrive from elsewhere: who waits for them, who goes on meanwhile, and what blocks that takes."""

from collections.abc import Generator
from string import ascii_lowercase

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy.events import Event

from kvcache.managers import Load
from simulator.latency import ConstantStepTimes
from simulator.loading import NOTHING, Offer
from simulator.recorder import Recorder
from simulator.replica import Inbox, serve, wait_until
from simulator.request import Request
from tests.kvcache.pools import chunked, full, mamba, sliding
from tests.simulator.conftest import Arrival, Log, new_request, new_scheduler


class Elsewhere:
    """Holds beginnings of some requests, and takes so many seconds to hand one over, whatever its size."""

    def __init__(self, offers: dict[str, int], seconds: float, once: bool = True) -> None:
        self._offers = dict(offers)
        self._seconds = seconds
        self._once = once
        self.loads: dict[str, list[Load]] = {}
        self.env: simpy.Environment
        self.inbox: Inbox

    def offer(self, request: Request, hit_tokens: int) -> Offer:
        num_tokens = self._offers.get(request.request_id, 0)
        return Offer(num_tokens, hit_tokens) if num_tokens else NOTHING

    def start(self, request: Request, loads: list[Load]) -> None:
        self.loads[request.request_id] = loads
        if self._once:
            del self._offers[request.request_id]
        self.env.process(self._hand_over(request))

    def _hand_over(self, request: Request) -> Generator[Event, object, None]:
        yield wait_until(self.env, self.env.now + self._seconds)
        self.inbox.loaded(request)


def run_with(source: Elsewhere, requests: list[Arrival], **server) -> Log:
    """Serve requests on a replica that has this source; every step finds the pool in order."""
    scheduler = new_scheduler(source=source, **server)
    named = {
        name: new_request(scheduler, name, serial, arrival)
        for serial, (name, arrival) in enumerate(zip(ascii_lowercase, requests, strict=False))
    }
    log = Log(scheduler, named, Recorder(scheduler))
    source.env = env = simpy.Environment()
    source.inbox = inbox = Inbox(env, scheduler)

    def deliver() -> Generator[Event, object, None]:
        for request in sorted(named.values(), key=lambda request: request.arrival_s):
            yield wait_until(env, request.arrival_s)
            inbox.deliver(request)

    env.process(serve(env, scheduler, ConstantStepTimes(1.0), inbox, log))
    env.process(deliver())
    env.run()
    scheduler.manager.check_integrity([])
    return log


def test_a_request_computes_its_last_token_once_the_others_have_arrived():
    """Seven seconds on the way; then one token of the prompt is computed, from which the first output token comes."""
    log = run_with(Elsewhere({"a": 100}, seconds=7.0), [Arrival(0.0, prompt=100, output=3)])
    assert log.steps == [{"a": 1}, {"a": 1}, {"a": 1}]
    assert log.first_token_s["a"] == 8.0


def test_what_the_source_lacks_is_computed():
    log = run_with(Elsewhere({"a": 60}, seconds=7.0), [Arrival(0.0, prompt=100, output=1)])
    assert (log.steps, log.requests["a"].loaded_tokens) == ([{"a": 40}], 60)


def test_others_run_while_a_load_is_on_its_way():
    """ "b" came later and is served first; the load ends during its row of equal steps and cuts it short."""
    log = run_with(
        Elsewhere({"a": 100}, seconds=7.2),
        [Arrival(0.0, prompt=100, output=1), Arrival(0.5, prompt=4, output=20)],
        block_size=64,
    )
    assert log.first_token_s == {"a": 8.5, "b": 1.5}


def test_a_load_waits_for_blocks_and_so_does_who_comes_behind_it():
    """Ten blocks: "a" has six of them for ten steps, "b" needs six for its load."""
    log = run_with(
        Elsewhere({"b": 24}, seconds=2.0),
        [Arrival(0.0, prompt=20, output=4), Arrival(0.5, prompt=24, output=1), Arrival(0.5, prompt=4, output=1)],
        num_blocks=11,
    )
    assert (log.first_token_s["b"], log.first_token_s["c"]) == (7.0, 5.0)


def test_a_load_leaves_others_the_blocks_that_they_still_need():
    """ "a" computes its prompt of 40 tokens in four steps; a load of "b" beside it would keep it from ending."""
    log = run_with(
        Elsewhere({"b": 16}, seconds=100.0),
        [Arrival(0.0, prompt=40, output=1), Arrival(0.5, prompt=16, output=1)],
        num_blocks=13, max_num_batched_tokens=10,
    )  # fmt: skip
    assert (log.finish_s["a"], log.preemptions["a"]) == (4.0, 0)


def test_cached_beginnings_are_not_loaded():
    """Eight tokens of "b" are what "a" left behind."""
    source = Elsewhere({"b": 24}, seconds=1.0)
    log = run_with(
        source,
        [Arrival(0.0, 12, 1, prefix_ids=(1, 2, 3)), Arrival(5.0, 24, 1, prefix_ids=(1, 2, 4, 5, 6, 7))],
    )
    (load,) = source.loads["b"]
    assert (load.cached, load.num_missing) == ([0, 1], 4)
    assert (log.cached_tokens["b"], log.requests["b"].loaded_tokens) == (8, 16)


def test_what_arrived_can_be_hit():
    log = run_with(
        Elsewhere({"a": 16}, seconds=1.0),
        [Arrival(0.0, 16, 1, prefix_ids=(1, 2, 3, 4)), Arrival(9.0, 17, 1, prefix_ids=(1, 2, 3, 4))],
    )
    assert log.cached_tokens["b"] == 16


@pytest.mark.parametrize(
    ("layer", "positions"),
    [
        (full(4), range(10)),
        (sliding(8, block_size=4), range(8, 10)),
        (chunked(16, block_size=4), range(8, 10)),
        (mamba(4), range(9, 10)),
    ],
)
def test_only_what_is_still_needed_is_loaded(layer, positions):
    """Of 40 tokens a window of 8 needs the last two blocks, a chunk of 16 what is after token 32, a state itself."""
    source = Elsewhere({"a": 40}, seconds=1.0)
    run_with(source, [Arrival(0.0, prompt=44, output=2)], layers=[full(4), layer])
    assert [load.positions for load in source.loads["a"]][-1] == positions


def test_a_load_that_can_never_fit_is_rejected():
    log = run_with(Elsewhere({"a": 100}, seconds=1.0), [Arrival(0.0, prompt=100, output=1)], num_blocks=11)
    assert log.rejected == ["a"]


MIXES = [
    [full(4)],
    [sliding(6, block_size=4)],
    [full(4), full(4), sliding(8, block_size=4), sliding(8, block_size=4)],
    [full(4), chunked(16, block_size=4)],
    [full(4), mamba(4)],
    [full(4), sliding(5, block_size=4), sliding(12, block_size=4)],
]

arrivals = st.builds(
    Arrival,
    at_s=st.integers(0, 60).map(lambda tenth: tenth / 2),
    prompt=st.integers(1, 60),
    output=st.integers(1, 20),
    prefix_ids=st.sampled_from([(), (1,), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 9, 10)]),
)


@settings(max_examples=300)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=12),
    shares=st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12),
    layers=st.sampled_from(MIXES),
    num_blocks=st.integers(40, 120),
    seconds=st.sampled_from([0.0, 0.3, 1.0, 2.5, 9.0]),
    is_async=st.booleans(),
    once=st.booleans(),
    caching=st.booleans(),
    max_num_seqs=st.integers(1, 8),
    budget=st.integers(16, 64),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_every_request_ends_and_every_block_comes_back(
    requests, shares, layers, num_blocks, seconds, is_async, once, caching, max_num_seqs, budget, policy
):
    """Whatever arrives from elsewhere and however late; the pool is looked at in every step, and at the end."""
    offers = {
        name: int(share * arrival.prompt)
        for name, share, arrival in zip(ascii_lowercase, shares, requests, strict=False)
        if int(share * arrival.prompt)
    }
    log = run_with(
        Elsewhere(offers, seconds, once), requests, layers=layers, num_blocks=num_blocks, async_scheduling=is_async,
        enable_prefix_caching=caching, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget,
        scheduling_policy=policy,
    )  # fmt: skip
    finished = {name for name, finish_s in log.finish_s.items() if finish_s is not None}
    assert finished | set(log.rejected) == log.requests.keys()
    assert not finished & set(log.rejected)
