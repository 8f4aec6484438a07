"""Scenarios of the conformance tests, replayed with a witness."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvcache.pages import KVPages
from kvcache.placement import LAYER_OUTERMOST
from simulator.batch import Batch
from simulator.engine import run_to_the_end
from simulator.latency import ConstantStepTimes, StepTimes
from simulator.marked_pool import MarkedPool
from simulator.request import Request
from simulator.scheduler import Scheduler
from simulator.token_content import TokenContent
from simulator.witness import Witness
from tests.conformance.replay import GENERATED_TOKEN, ChainedIds, build, request_of
from tests.simulator.attending import Attending
from tests.simulator.conftest import OneStepAtATime

__all__ = ["Replayed", "replay_with_attention", "replay_with_witness"]


class Names:
    """Ids for the tokens of scenarios: equal ids where all tokens up to there are equal."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, object], int] = {}

    def of(self, row: dict[str, Any], output: list[int]) -> list[int]:
        """One id for each token that others may share; the others are the request's own."""
        parent, ids = 0, []
        for token in self._tokens(row, output):
            parent = self._numbers.setdefault((parent, token), len(self._numbers) + 1)
            ids.append(parent)
        return ids

    @staticmethod
    def _tokens(row: dict[str, Any], output: list[int]) -> Iterable[object]:
        if "prompt" in row:
            return [*row["prompt"], *output]
        size = row.get("hash_block", 512)
        hash_ids = row["hash_ids"][: row["input_length"] // size]
        named = [(number, size, place) for number in hash_ids for place in range(size)]
        return [*named, *output] if len(named) == row["input_length"] else named


@dataclass
class Replayed:
    """A run that is over."""

    pages: KVPages
    pool: MarkedPool
    requests: list[Request]
    num_steps: int
    num_tokens: int
    """Computed in these steps."""


class _Log:
    """Counts steps and tokens."""

    num_steps = num_tokens = 0

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        pass

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        self.num_steps += num_steps
        self.num_tokens += num_steps * batch.num_tokens


def requests_with_content(scenario: dict[str, Any], scheduler: Scheduler) -> Iterator[tuple[Request, TokenContent]]:
    """The scenario's requests in order of arrival, and what their tokens are."""
    chained, names = ChainedIds(scheduler.manager.hash_unit), Names()
    for serial, row in enumerate(sorted(scenario["requests"], key=lambda row: row.get("arrive_step", 0))):
        output = row["output"] if isinstance(row["output"], list) else [GENERATED_TOKEN] * row["output"]
        yield request_of(serial, row, scheduler, chained), TokenContent(names.of(row, output), 1, serial)


def replay_with_witness(
    scenario: dict[str, Any],
    *,
    device: str = "cpu",
    rereads: bool = True,
    every_layer: bool = True,
    one_by_one: bool = True,
    order: str = LAYER_OUTERMOST,
) -> Replayed:
    """Replay a scenario to its end; every step by itself, unless rows of equal steps may stay rows."""
    layout, scheduler = build(scenario)
    log = _Log()
    pages = KVPages(layout, device, order)
    pages.raw.zero_()
    witness = Witness(pages, scheduler, log, rereads=rereads, every_layer=every_layer)
    requests = []
    for request, content in requests_with_content(scenario, scheduler):
        witness.expect(request, content)
        requests.append(request)
    step_times: StepTimes = ConstantStepTimes(1.0)
    if one_by_one:
        step_times = OneStepAtATime(step_times)
    run_to_the_end(scheduler, step_times, iter(requests), witness, planning_s=1.0)
    return Replayed(pages, witness.pool, requests, log.num_steps, log.num_tokens)


def replay_with_attention(scenario: dict[str, Any], device: str = "cpu") -> Attending:
    """Every step of a scenario computed through the block tables and compared with dense attention."""
    layout, scheduler = build(scenario)
    attending = Attending(KVPages(layout, device), scheduler)
    requests = []
    for request, content in requests_with_content(scenario, scheduler):
        attending.content[request.request_id] = content
        requests.append(request)
    run_to_the_end(scheduler, OneStepAtATime(ConstantStepTimes(1.0)), iter(requests), attending, planning_s=1.0)
    return attending
