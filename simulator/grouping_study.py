"""One trace under several groupings: the same budget of bytes, the same traffic, a run for each.

Read `study_groupings` first. Policies that leave the very same server are run once. A policy that the layers or
the pool refuse, or whose run fails, is listed with its reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from os import cpu_count
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcache.errors import KVCacheError
from kvcache.ledger import LEDGER_PARTS, NEEDED_PARTS, WASTED_PARTS
from kvcache.policies import GroupingPolicy
from kvcache.waste import PADDING
from simulator.deployment import Deployment, deploy
from simulator.engine import simulate
from simulator.pool_bytes import BYTE_COLUMNS
from simulator.recorder import BATCHES_PER_SAMPLE
from simulator.scenario import Scenario, ScenarioError
from workloads import Trace

__all__ = ["GroupingStudy", "Outcome", "Replay", "request_tokens_at", "study_groupings"]

_REQUESTS_PER_BATCH_AND_SAMPLE = 10
"""For each so many requests of the trace, one batch more lies between two samples of the memory ledger: some hundred
of a short trace, where a single run would have few, and in different moments under each grouping."""
_SECONDS_BETWEEN_LOOKS = 0.2
_ended: Any = None
"""In a worker process: how many requests have ended in each run, shared with the process that started it."""


@dataclass(frozen=True, eq=False)
class Replay:
    """What is kept of one run; times are seconds of simulated time."""

    scenario: Mapping[str, Any]
    capacity: Mapping[str, Any]
    summary: Mapping[str, Any]
    """As `kvplan simulate` would say it, but for the wasted bytes: of a short trace these are sampled more often."""
    samples: Mapping[str, npt.NDArray[np.float64]]
    """start_s and the parts of the memory ledger, in the rows in which it was sampled."""
    begin_s: float
    end_s: float

    @property
    def budget_bytes(self) -> int:
        """The pool and the rest that is too small for a block, on one rank: the same for all groupings."""
        return int(self.capacity["pool_bytes"] + self.capacity["remainder_bytes"])

    @property
    def ledger(self) -> dict[str, int]:
        """Bytes of each part, the mean of all samples: they add up to the budget. Empty where none was taken."""
        num_samples = len(self.samples["start_s"])
        if not num_samples:
            return {}
        parts = {part: int(self._part(part).sum()) // num_samples for part in LEDGER_PARTS}
        largest = max(parts, key=lambda part: parts[part])
        parts[largest] += self.budget_bytes - sum(parts.values())  # what rounding down took
        return parts

    @property
    def wasted_share(self) -> float:
        """Of the bytes that requests hold, over all samples."""
        return float(self.summary["wasted_bytes"]["share_of_held"] or 0.0)

    @property
    def wasted_share_at_most(self) -> float:
        """The largest of any sample in which something was held."""
        wasted, needed = self._parts(WASTED_PARTS), self._parts(NEEDED_PARTS)
        held = wasted + needed
        return float((wasted[held > 0] / held[held > 0]).max(initial=0.0))

    @property
    def padding_share(self) -> float:
        """Bytes of padding, of those that requests hold."""
        held = float(self._parts((*WASTED_PARTS, *NEEDED_PARTS)).sum())
        return float(self._parts(PADDING).sum()) / held if held else 0.0

    def _parts(self, parts: Iterable[str]) -> npt.NDArray[np.float64]:
        total: npt.NDArray[np.float64] = np.sum([self._part(part) for part in parts], axis=0)
        return total

    def _part(self, part: str) -> npt.NDArray[np.float64]:
        return self.samples[f"{part}_bytes"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one policy."""

    policy: str
    replay: Replay | None
    """None where it was refused or failed."""
    same_as: str | None = None
    """An earlier policy that leaves the same server, whose run it is."""
    reason: str | None = None
    """Why there is no run."""

    def row(self, model: str, trace: str) -> dict[str, Any]:
        """Plain JSON values: the keys of a static row, `summary` with all that the run measured, and `same_as`."""
        row: dict[str, Any] = {
            "model": model, "policy": self.policy, "kind": "replay", "trace": trace, "request_tokens": None
        }  # fmt: skip
        figures = ("pool_bytes", "ledger", "wasted_pct", "wasted_pct_max", "groups", "padding_slots", "summary")
        row |= dict.fromkeys(figures)
        if (replay := self.replay) is not None:
            groups = replay.capacity["groups"]
            row |= {
                "pool_bytes": replay.budget_bytes,
                "ledger": replay.ledger,
                "wasted_pct": 100 * replay.wasted_share,
                "wasted_pct_max": 100 * replay.wasted_share_at_most,
                "groups": len(groups),
                "padding_slots": sum(group["padding_layers"] for group in groups),
                "summary": dict(replay.summary),
            }
        return {**row, "same_as": self.same_as, "refused": self.reason}


@dataclass(frozen=True, eq=False)
class GroupingStudy:
    """All policies that were asked for, in that order."""

    model: str
    trace: str
    outcomes: tuple[Outcome, ...]

    @property
    def runs(self) -> dict[str, Replay]:
        """Different runs by the first policy that has each."""
        return {each.policy: each.replay for each in self.outcomes if each.replay is not None and each.same_as is None}

    @property
    def twins(self) -> dict[str, list[str]]:
        """By a policy with a run, the later ones that leave the same server."""
        twins: dict[str, list[str]] = {}
        for each in self.outcomes:
            if each.same_as is not None:
                twins.setdefault(each.same_as, []).append(each.policy)
        return twins

    @property
    def refused(self) -> dict[str, str]:
        """Policies without a run, and why."""
        return {each.policy: each.reason for each in self.outcomes if each.reason is not None}

    def rows(self) -> list[dict[str, Any]]:
        """One for each policy, in plain JSON values."""
        return [each.row(self.model, self.trace) for each in self.outcomes]


def request_tokens_at(trace: Trace, percents: Sequence[float]) -> tuple[int, ...]:
    """Lengths of requests, prompt and output, that so many percent of the trace's do not exceed; each once, ascending.

    Raises ScenarioError for a trace without requests, and TraceError for a damaged one.
    """
    lengths = [request.prompt_tokens + request.output_tokens for request in trace]
    if not lengths:
        raise ScenarioError(f"--trace: {trace.name} has no requests")
    return tuple(sorted({int(tokens) for tokens in np.percentile(lengths, percents, method="inverted_cdf")}))


def study_groupings(
    scenario: Scenario,
    trace: Trace,
    policies: Sequence[GroupingPolicy],
    on_progress: Callable[[int, int], None] = lambda num_ended, num_runs: None,
    num_workers: int | None = None,
) -> GroupingStudy:
    """Replay `trace` on the scenario's server under each policy, side by side in processes.

    `on_progress(num_ended, num_runs)`: so many requests have ended, over all runs. `num_workers`: as many as there
    are cores, unless stated. Raises ValueError with one line for a person where no policy leaves a server that starts.
    """
    outcomes: dict[str, Outcome] = {}
    servers: dict[str, Deployment] = {}
    for policy in policies:
        try:
            server = deploy(scenario, policy)
            server.new_scheduler()
            _ = server.step_times
        except (KVCacheError, ScenarioError) as error:
            outcomes[policy.name] = Outcome(policy.name, None, reason=str(error))
            continue
        twin = next((name for name, other in servers.items() if _are_same(server, other)), None)
        if twin is None:
            servers[policy.name] = server
        else:
            outcomes[policy.name] = Outcome(policy.name, None, same_as=twin)
    if not servers:
        raise ScenarioError(next(iter(outcomes.values())).reason)
    batches_per_sample = min(BATCHES_PER_SAMPLE, max(1, sum(1 for _ in trace) // _REQUESTS_PER_BATCH_AND_SAMPLE))
    jobs = [(scenario, policy, batches_per_sample) for policy in policies if policy.name in servers]
    for (_, policy, _), future in zip(jobs, _run_all(jobs, trace, on_progress, num_workers), strict=True):
        outcomes[policy.name] = _outcome(policy.name, future)
    model = next(iter(servers.values())).model.name
    ordered = (_of_twin(outcomes[policy.name], outcomes) for policy in policies)
    return GroupingStudy(model, trace.name, tuple(ordered))


def _are_same(one: Deployment, other: Deployment) -> bool:
    return (one.layout, one.cache_settings, one.scheduler_settings) == (
        other.layout, other.cache_settings, other.scheduler_settings
    )  # fmt: skip


def _run_all(
    jobs: Sequence[tuple[Scenario, GroupingPolicy, int]],
    trace: Trace,
    on_progress: Callable[[int, int], None],
    num_workers: int | None,
) -> list[Future[Replay]]:
    """The runs of all jobs, ended."""
    context = get_context("spawn")  # a forked process would share the threads that draw the progress
    ended = context.Array("q", len(jobs))
    with ProcessPoolExecutor(
        min(num_workers or cpu_count() or 1, len(jobs)), context, initializer=_share, initargs=(ended,)
    ) as pool:
        futures = [pool.submit(_replay, nth, *job, trace) for nth, job in enumerate(jobs)]
        pending = set(futures)
        while pending:
            _, pending = wait(pending, timeout=_SECONDS_BETWEEN_LOOKS)
            on_progress(sum(ended[:]), len(jobs))
    return futures


def _share(ended: Any) -> None:
    global _ended  # noqa: PLW0603  the one way to hand a worker what cannot be sent with a job
    _ended = ended


def _replay(nth: int, scenario: Scenario, policy: GroupingPolicy, batches_per_sample: int, trace: Trace) -> Replay:
    def note(_now_s: float, num_ended: int) -> None:
        _ended[nth] = num_ended

    result = simulate(scenario, trace, note, policy=policy, batches_per_sample=batches_per_sample)
    steps, requests = result.tables["steps"], result.tables["requests"]
    is_sampled = ~np.isnan(np.asarray(steps["free_bytes"], dtype=np.float64))
    begin_s = float(np.min(np.asarray(requests["arrival_s"]), initial=np.inf))
    end_s = float(np.max(np.asarray(steps["end_s"]), initial=begin_s))
    samples = {name: np.asarray(steps[name], dtype=np.float64)[is_sampled] for name in ("start_s", *BYTE_COLUMNS)}
    return Replay(result.scenario, result.capacity, result.summary, samples, begin_s, end_s)


def _outcome(policy: str, future: Future[Replay]) -> Outcome:
    error = future.exception()
    if error is None:
        return Outcome(policy, future.result())
    return Outcome(policy, None, reason=f"its run failed, {type(error).__name__}: {error}")


def _of_twin(outcome: Outcome, outcomes: Mapping[str, Outcome]) -> Outcome:
    if outcome.same_as is None:
        return outcome
    twin = outcomes[outcome.same_as]
    if twin.replay is None:
        return Outcome(outcome.policy, None, reason=twin.reason)
    return Outcome(outcome.policy, twin.replay, same_as=outcome.same_as)
