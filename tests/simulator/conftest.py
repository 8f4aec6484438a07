"""A server small enough to reckon by hand, and traffic for it.

`serve` runs requests through the loop that every simulation runs through and gives back a `Log` of what
happened to them. They are called "a", "b", "c" ... in the order in which they are written down.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase

import pytest

from kvcache.hashing import PrefixKeys
from kvcache.layout import KVCacheLayout
from kvcache.manager import CacheSettings, KVCacheManager
from kvcache.policies import policy_named
from kvcache.pool_kinds import DOCUMENT
from kvcache.specs import KVCacheSpec
from simulator.batch import Batch
from simulator.cli import main
from simulator.engine import run_to_the_end
from simulator.latency import ConstantStepTimes, StepTimes
from simulator.loading import KVSource, LoadingScheduler
from simulator.recorder import Recorder
from simulator.request import Request
from simulator.running import holding
from simulator.scheduler import Scheduler, SchedulerSettings
from tests.kvcache.pools import full, mamba

MAX_MODEL_LEN = 1 << 20


@dataclass(frozen=True)
class Arrival:
    """A request that arrives; `prefix_ids` name the beginning of its prompt, one id per block."""

    at_s: float
    prompt: int
    output: int
    prefix_ids: tuple[int, ...] = ()
    priority: int = 0


CHUNKS_LEAVE_NO_BUDGET = {
    "layers": [full(8), mamba(8)],
    "block_size": 8,
    "max_num_batched_tokens": 16,
    "requests": [Arrival(0.0, prompt=1, output=4), Arrival(0.5, prompt=60, output=1), Arrival(0.5, 1, output=9)],
}
"""Chunks end at blocks of eight: while "a" decodes 15 tokens are good for 8 of "b", then 16 for 16, and "c" waits."""


@dataclass
class Log:
    """What happened in a run. It watches each step, and each look finds the pool in order."""

    scheduler: Scheduler
    requests: dict[str, Request]
    recorder: Recorder
    on_planned: Callable[[Scheduler, Batch], None] = lambda scheduler, batch: None
    steps: list[dict[str, int]] = field(default_factory=list)
    """Tokens that each request computed, in order of service, for every step."""
    steps_per_batch: list[int] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    in_flight: deque[dict[str, int]] = field(default_factory=deque)

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        scheduler.manager.check_integrity([request.blocks for request in holding(scheduler)])
        self.rejected += [request.request_id for request in scheduler.plan.rejected]
        self.in_flight.append(dict(scheduler.scheduled_tokens()))
        self.on_planned(scheduler, batch)
        self.recorder.planned(start_s, scheduler, batch)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        self.steps += [self.in_flight.popleft()] * num_steps
        self.steps_per_batch.append(num_steps)
        self.recorder.settled(start_s, end_s, num_steps, batch, ended)

    @property
    def first_token_s(self) -> dict[str, float | None]:
        return {name: request.first_token_s for name, request in self.requests.items()}

    @property
    def finish_s(self) -> dict[str, float | None]:
        return {name: request.finish_s for name, request in self.requests.items()}

    @property
    def cached_tokens(self) -> dict[str, int]:
        return {name: request.cached_tokens for name, request in self.requests.items()}

    @property
    def preemptions(self) -> dict[str, int]:
        return {name: request.num_preemptions for name, request in self.requests.items()}

    def tokens(self, name: str) -> list[int]:
        """What the request computed in each step in which it computed something."""
        return [step[name] for step in self.steps if name in step]


@dataclass(frozen=True)
class OneStepAtATime:
    """Step times that let no row of steps pass as one: slow, and plainly right."""

    step_times: StepTimes

    def durations_s(self, batch: Batch) -> list[float]:
        return self.step_times.durations_s(batch)[:1]


def new_scheduler(
    layers: Sequence[KVCacheSpec] | None = None,
    num_blocks: int = 1000,
    block_size: int = 4,
    watermark: float = 0.0,
    enable_prefix_caching: bool = True,
    retention: int | None = 0,
    reaches=(),
    grouping: str = "vllm",
    is_document: bool = False,
    manager_type: type[KVCacheManager] = KVCacheManager,
    source: KVSource | None = None,
    **limits,
) -> Scheduler:
    """A scheduler with an empty pool, whose size no start-up check has looked at; `limits` as SchedulerSettings."""
    layers = layers or [full(block_size)]
    settings = SchedulerSettings(**{"max_model_len": MAX_MODEL_LEN, **limits})
    if any(layer.kind == "mamba" for layer in layers) and enable_prefix_caching:
        settings = replace(settings, state_block=block_size)
    policy = policy_named(grouping)
    groups = tuple(policy.groups(layers))
    layout = KVCacheLayout(
        groups, num_blocks, settings.max_model_len, settings.max_num_batched_tokens,
        pool_kind=DOCUMENT if is_document else policy.pool_kind,
    )  # fmt: skip
    retention = None if is_document else retention
    cache = CacheSettings(block_size, enable_prefix_caching, retention, watermark, caches_every_block=is_document)
    manager = manager_type(layout, cache)
    if source is not None:
        return LoadingScheduler(manager, settings, reaches, source)
    return Scheduler(manager, settings, reaches)


def new_request(scheduler: Scheduler, name: str, serial: int, arrival: Arrival) -> Request:
    manager = scheduler.manager
    block_size = manager.settings.block_size
    keys = PrefixKeys.of_prefix_ids(arrival.prefix_ids, block_size, manager.hash_unit, serial)
    blocks = manager.new_request(keys, arrival.prompt)
    return Request(name, arrival.at_s, blocks, output_tokens=arrival.output, priority=arrival.priority)


def run(
    requests: Sequence[Arrival],
    step_s: float = 1.0,
    step_times: StepTimes | None = None,
    on_planned: Callable[[Scheduler, Batch], None] = lambda scheduler, batch: None,
    **server,
) -> Log:
    """Serve `requests` to the end; `on_planned` may look at the scheduler and the batch once it is planned."""
    scheduler = new_scheduler(**server)
    named = {
        name: new_request(scheduler, name, serial, arrival)
        for serial, (name, arrival) in enumerate(zip(ascii_lowercase[: len(requests)], requests, strict=True))
    }
    log = Log(scheduler, named, Recorder(scheduler), on_planned)
    in_order = sorted(named.values(), key=lambda request: request.arrival_s)
    run_to_the_end(scheduler, step_times or ConstantStepTimes(step_s), iter(in_order), log)
    return log


@pytest.fixture
def serve():
    """Serve `requests` on a small server; its settings are those of `new_scheduler`."""
    return run


@dataclass(frozen=True)
class Outcome:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def kvplan(monkeypatch, capsys, tmp_path):
    """Run the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["kvplan", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return Outcome(end.value.code or 0, printed.out, printed.err)

    return run
