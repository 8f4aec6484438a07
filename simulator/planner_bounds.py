"""What arithmetic says of a server before anything runs: whether it can ever keep an SLO, and with how many replicas.

Every bound is proven, and holds for runs of finite length:

* **Latency.** A request is served no faster than by itself: its TTFT is at least the time of its prompt's steps,
  its TPOT at least that of steps with itself alone (`StepTimes.least_s`). This holds request by request, so for
  every percentile and for the mean.
* **Work.** If a share q of M requests must have its first token within L seconds, the prompts of the q M cheapest ones
  are computed between the first of their arrivals and L seconds after the last one. n replicas have n times as much
  time, so n is at least the work over that time. With a limit on TPOT, or end-to-end, the same holds for whole
  requests, by the union bound: a share q1 + q2 - 1 keeps both.
* **KV memory.** In that time a decode holds at least the blocks of its prompt for as long as its steps take when it
  runs alone (Little's law for a window): blocks x seconds over all requests fit into n pools x the window. The same
  blocks bound how many decodes share a step, and with it the number of steps.

Prompt tokens that an earlier request of the trace has, too, may be hit: they count as no work. Where some may be,
blocks may be shared, so nothing is said of memory.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from models_configs import Everything, Reach
from simulator.deployment import Deployment
from simulator.latency import Work
from simulator.slo import Limit, Slo
from simulator.summary_table import format_seconds
from workloads import TraceRequest

__all__ = ["Bound", "Demand", "bound_of", "guess_replicas"]

_ROUNDING = 1e-9
"""A bound is proven up to the rounding of sums."""
PROMPTS, REQUESTS, MEMORY = "the arithmetic of the prompts", "the arithmetic of whole requests", "KV memory"


class Shape(NamedTuple):
    """All that counts of a request."""

    prompt: int
    new: int
    """Prompt tokens that must be computed, whatever was cached."""
    output: int


@dataclass(frozen=True)
class Demand:
    """The requests of one seed that are measured."""

    shapes: Mapping[Shape, int]
    """How many there are of each."""
    window_s: float
    """From the first of their arrivals to the last."""
    may_share: bool
    """Whether some begin alike."""

    @classmethod
    def of(cls, rows: Sequence[TraceRequest], prefix_block_tokens: int | None, warm_up: float = 0.0) -> "Demand":
        """`warm_up`: share of the requests, the first ones, that is not measured."""
        seen: set[object] = set()
        shapes = []
        for row in rows:
            hit = 0
            while hit < len(row.prefix_ids) and row.prefix_ids[hit] in seen:
                hit += 1
            seen.update(row.prefix_ids)
            hit_tokens = min(hit * (prefix_block_tokens or 0), row.prompt_tokens - 1)
            shapes.append(Shape(row.prompt_tokens, row.prompt_tokens - hit_tokens, row.output_tokens))
        may_share = any(shape.new < shape.prompt for shape in shapes)
        skipped = int(len(rows) * warm_up)
        return cls(Counter(shapes[skipped:]), rows[-1].arrival_s - rows[skipped].arrival_s, may_share)

    @cached_property
    def num_requests(self) -> int:
        """All of them."""
        return sum(self.shapes.values())


@dataclass(frozen=True, slots=True)
class Bound:
    """What is proven of one kind of replica."""

    wall: str | None
    """Why no number of them keeps the SLO."""
    least_replicas: int = 1
    reason: str = ""
    """What `least_replicas` follows from."""
    wall_ratio: float = math.inf
    """How many times a latency of an empty server is over its limit, where that is the wall."""
    wall_kind: str = ""
    """The wall without its figures."""


def bound_of(deployment: Deployment, demands: Sequence[Demand], slo: Slo, longest_tokens: int) -> Bound:
    """The bound under all seeds' traffic: what is below it fails with every seed."""
    max_model_len = deployment.scheduler_settings.max_model_len
    if longest_tokens > max_model_len:
        return Bound(
            f"the longest request has {longest_tokens:,} tokens, and at most {max_model_len:,} fit",
            wall_kind="the longest request does not fit",
        )
    alone = _Alone(deployment)
    walls = [wall for demand in demands if (wall := _wall(alone, demand, slo)) is not None]
    if len(walls) == len(demands):
        return walls[0]
    least, reason = min(max(_load_bounds(alone, demand, slo), default=(1, "")) for demand in demands)
    return Bound(None, max(1, least), reason if least > 1 else "")


class _Alone:
    """What requests need of a server of this kind, at the least."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.times = deployment.step_times
        self.settings = deployment.scheduler_settings
        works = _Works(self.settings.max_num_batched_tokens, (Everything(), *deployment.model.reaches))
        self.prefill: Callable[[Shape], Work] = cache(works.prefill)
        self.decode: Callable[[Shape], Work] = cache(works.decode)
        self.decode_blocks: Callable[[Shape], int] = cache(self._decode_blocks)
        self.prefill_s: Callable[[Shape], float] = cache(lambda shape: self.times.least_s(self.prefill(shape)))
        self.decode_s: Callable[[Shape], float] = cache(
            lambda shape: self.times.least_s(self.decode(shape)) if shape.output > 1 else 0.0
        )

    @property
    def usable_blocks(self) -> int:
        """Of the pool, without the null block."""
        return self.deployment.layout.num_blocks - 1

    def token_s(self, shape: Shape) -> float:
        """TPOT, at the least; 0 where there is none."""
        return self.decode_s(shape) / (shape.output - 1) if shape.output > 1 else 0.0

    def _decode_blocks(self, shape: Shape) -> int:
        """Blocks that the request holds while it decodes, at least: a chunk may have just begun."""
        held = 0
        for group in self.deployment.layout.groups:
            reach = getattr(group.spec, "reach", None)
            at_most = group.spec.blocks_while_decoding(shape.prompt)
            held += at_most if reach is None else max(0, at_most - 1) if reach[0] == "window" else 0
        return held


@dataclass(frozen=True)
class _Works:
    """What steps compute of requests, whatever they run on."""

    budget: int
    """Tokens of one step, at most."""
    reaches: tuple[Reach, ...]

    def prefill(self, shape: Shape) -> Work:
        """Of a prompt that runs alone, in steps as large as can be."""
        num_steps = math.ceil(shape.new / self.budget)
        pairs = tuple(reach.num_pairs(shape.new, shape.prompt - shape.new) for reach in self.reaches)
        return Work(num_steps, shape.new, num_steps, self.budget, pairs, (0.0,) * len(pairs))

    def decode(self, shape: Shape) -> Work:
        """Of the tokens after the first, each in a step of its own."""
        num = shape.output - 1
        reads = tuple(reach.num_pairs(num, shape.prompt) for reach in self.reaches)
        return Work(num, num, num, self.budget, (0.0,) * len(reads), reads, num)


def _wall(alone: _Alone, demand: Demand, slo: Slo) -> Bound | None:
    """The limit that an empty server breaks."""
    several = {shape: count for shape, count in demand.shapes.items() if shape.output > 1}
    # No gap between tokens is shorter than a request's first, whose context is the shortest.
    gap_s = min((alone.decode_s(shape._replace(output=2)) for shape in several), default=0.0)
    of_runs: dict[str, tuple[Callable[[Shape], float], Mapping[Shape, int]]] = {
        "ttft": (alone.prefill_s, demand.shapes),
        "tpot": (alone.token_s, several),
        "itl": (lambda shape: gap_s, several),
        "e2e": (lambda shape: alone.prefill_s(shape) + alone.decode_s(shape), demand.shapes),
    }
    for limit in slo.limits:
        seconds, shapes = of_runs[limit.measure]
        if shapes:
            values = np.repeat([seconds(shape) for shape in shapes], list(shapes.values()))
            at_best = float(values.mean() if limit.share is None else np.quantile(values, limit.share))
            if at_best > limit.limit_s * (1 + _ROUNDING):
                return _broken(limit, at_best)
    for limit in slo.each:
        values = np.repeat([of_runs[limit.measure][0](each) for each in demand.shapes], list(demand.shapes.values()))
        at_best = float(np.sort(values)[_least_count(len(values), slo.attainment or 0.0) - 1])
        if at_best > limit.limit_s * (1 + _ROUNDING):
            return _broken(limit, at_best)
    return None


def _broken(limit: Limit, at_best_s: float) -> Bound:
    wall = f"{limit.name} is {format_seconds(at_best_s)} on an empty server, over {format_seconds(limit.limit_s)}"
    kind = f"{limit.name} is over its limit on an empty server"
    return Bound(wall, wall_ratio=at_best_s / limit.limit_s, wall_kind=kind)


def _load_bounds(alone: _Alone, demand: Demand, slo: Slo) -> list[tuple[int, str]]:
    """(least replicas, why), of each argument that applies."""
    total = demand.num_requests
    longest = max(shape.output for shape in demand.shapes)
    first = [(_least_count(total, share), limit_s) for share, limit_s in slo.shares("ttft")]
    # Of those with one token only, all keep a limit on TPOT: of all requests no fewer than of the others.
    paced = [(_least_count(total, share), limit_s * (longest - 1)) for share, limit_s in slo.shares("tpot")]
    whole = [(_least_count(total, share), limit_s) for share, limit_s in slo.shares("e2e")]
    whole += [
        (num_first + num_paced - total, first_s + paced_s)
        for num_first, first_s in first
        for num_paced, paced_s in paced
    ]
    cheapest = _Cheapest(alone, demand)
    bounds = [
        (_over(alone.times.least_s(cheapest.prompts(num)), demand.window_s + limit_s), PROMPTS)
        for num, limit_s in first
    ]
    for num, limit_s in whole:
        window_s = demand.window_s + limit_s
        bounds.append((_over(alone.times.least_s(cheapest.requests(num)), window_s), REQUESTS))
        if not demand.may_share:
            held = cheapest.least_sum(lambda shape: alone.decode_blocks(shape) * alone.decode_s(shape), num)
            bounds.append((_over(held, window_s * alone.usable_blocks), MEMORY))
    return bounds


def _least_count(total: int, share: float) -> int:
    """How many of `total` values are within a limit, at least, if their quantile is (interpolated as numpy does)."""
    return math.floor(share * (total - 1) + _ROUNDING) + 1 if total else 0


def _over(need: float, of_one_replica: float) -> int:
    """Replicas for a need; less by a billionth, so that no rounding proves too much."""
    return math.ceil(need / of_one_replica * (1 - _ROUNDING)) if of_one_replica > 0 else 1


@dataclass(frozen=True)
class _Cheapest:
    """What any `num` requests need together: each part of the work for those `num` that need least of it."""

    alone: _Alone
    demand: Demand

    def least_sum(self, value: Callable[[Shape], float], num: int) -> float:
        """Of the `num` smallest values."""
        total, left = 0.0, max(0, num)
        for each, count in sorted((value(shape), count) for shape, count in self.demand.shapes.items()):
            total += each * min(count, left)
            left -= min(count, left)
        return total

    def prompts(self, num: int) -> Work:
        """Prompts alone, in steps as full as can be, whoever shares them."""
        prefill = self.alone.prefill
        tokens = self.least_sum(lambda shape: shape.new, num)
        reaches = range(len(self.alone.deployment.model.reaches) + 1)
        return Work(
            num_steps=tokens / self.alone.settings.max_num_batched_tokens,
            num_tokens=tokens,
            num_rows=self.least_sum(lambda shape: prefill(shape).num_rows, num),
            max_step_tokens=self.alone.settings.max_num_batched_tokens,
            prefill_pairs=tuple(self.least_sum(_nth(prefill, "prefill_pairs", n), num) for n in reaches),
            decode_reads=(0.0,) * len(reaches),
        )

    def requests(self, num: int) -> Work:
        """Whole requests: decodes share steps, as far as `max_num_seqs` and the pool let them."""
        prompts, decode = self.prompts(num), self.alone.decode
        decodes = self.least_sum(lambda shape: shape.output - 1, num)
        num_steps = decodes / self.alone.settings.max_num_seqs
        if not self.demand.may_share and self.alone.usable_blocks > 0:
            held = self.least_sum(lambda shape: (shape.output - 1) * self.alone.decode_blocks(shape), num)
            num_steps = max(num_steps, held / self.alone.usable_blocks)
        tokens = prompts.num_tokens + decodes
        return replace(
            prompts,
            num_steps=max(num_steps, tokens / prompts.max_step_tokens),
            num_tokens=tokens,
            num_rows=prompts.num_rows + decodes,
            decode_reads=tuple(
                self.least_sum(_nth(decode, "decode_reads", n), num) for n in range(len(prompts.prefill_pairs))
            ),
            num_decodes=decodes,
        )


def _nth(work: Callable[[Shape], Work], name: str, place: int) -> Callable[[Shape], float]:
    """One reach's part of a component of the work."""
    return lambda shape: float(getattr(work(shape), name)[place])


# Where to look first.


def guess_replicas(deployment: Deployment, demands: Sequence[Demand], slo: Slo, least: int, most: int) -> int:
    """About how many replicas will do, by rules of thumb: only where a search begins. `most`: none will."""
    alone = _Alone(deployment)
    shape, rate_per_s = _typical(demands)
    strictest = {
        measure: min((limit_s for _, limit_s in slo.shares(measure)), default=math.inf)
        for measure in ("ttft", "tpot", "e2e")
    }

    def holds(num_replicas: int) -> bool:
        ttft_s, tpot_s = _expected(alone, shape, rate_per_s / num_replicas)
        e2e_s = ttft_s + tpot_s * (shape.output - 1)
        return ttft_s <= strictest["ttft"] and tpot_s <= strictest["tpot"] and e2e_s <= strictest["e2e"]

    return bisect_left(range(least, most), True, key=holds) + least


def _typical(demands: Sequence[Demand]) -> tuple[Shape, float]:
    """(the mean request, requests a second)."""
    counts = np.array([count for demand in demands for count in demand.shapes.values()])
    lengths = np.array([shape for demand in demands for shape in demand.shapes], dtype=np.float64)
    prompt, new, output = (max(1, round(mean)) for mean in np.average(lengths, axis=0, weights=counts))
    seconds = sum(demand.window_s for demand in demands)
    return Shape(prompt, min(new, prompt), output), float(counts.sum()) / seconds if seconds > 0 else 0.0


_TAIL = 0.01
"""Share of the requests that waits longer than what is expected here."""
_TAIL_SIGMAS = 2.33
"""Of a normal distribution, from its mean, beyond which that share lies."""


def _expected(alone: _Alone, shape: Shape, rate_per_s: float) -> tuple[float, float]:
    """(TTFT, TPOT) in the tail, in seconds, of a replica to which so many requests come.

    Prompts queue as in an M/D/1 queue, and stop the decodes beside them; how many of them a decode meets is Poisson's.
    """
    prompt_s = alone.prefill_s(shape)
    busy = rate_per_s * prompt_s
    if busy >= 1:
        return math.inf, math.inf
    num_decodes, step_s, life_s = 0.0, 0.0, 0.0
    for _ in range(8):  # the more decode, the longer a step, the more decode
        step_s = _step_s(alone, shape, num_decodes)
        life_s = (shape.output - 1) * step_s / (1 - busy)
        num_decodes = rate_per_s * life_s
        if num_decodes > alone.settings.max_num_seqs:
            return math.inf, math.inf
    if num_decodes * alone.decode_blocks(shape) > max(1, alone.usable_blocks):
        return math.inf, math.inf
    wait_s = prompt_s * max(0.0, math.log(busy / _TAIL)) / (2 * (1 - busy)) if busy > 0 else 0.0
    met = _most_met(rate_per_s * life_s)
    return prompt_s + step_s + wait_s, step_s + met * prompt_s / max(1, shape.output - 1)


def _most_met(mean: float) -> int:
    """So many or fewer, but for `_TAIL`, if their number is Poisson's."""
    if mean > 100:
        return round(mean + _TAIL_SIGMAS * math.sqrt(mean))
    number, probability = 0, math.exp(-mean)
    below = probability
    while below < 1 - _TAIL:
        number += 1
        probability *= mean / number
        below += probability
    return number


def _step_s(alone: _Alone, shape: Shape, num_decodes: float) -> float:
    """Of a step in which so many decode, half of their output behind them."""
    num = max(1.0, num_decodes)
    one = alone.decode(shape._replace(output=2, prompt=shape.prompt + shape.output // 2))
    reads = tuple(num * each for each in one.decode_reads)
    return alone.times.least_s(
        replace(one, num_steps=1, num_tokens=num, num_rows=num, num_decodes=num, decode_reads=reads)
    )
