"""`kvplan waste`: what each way of grouping layers wastes, of one request and under a trace."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kvcache.policies import POLICIES, REQUEST_TOKENS, GroupingPolicy, SearchPolicy, policy_named
from models_configs import Model, find_model, list_models
from simulator.run_folder import check_folder
from simulator.scenario import Scenario, ScenarioError
from simulator.server import plan_server
from simulator.static_waste import ModelWaste, waste_of_model
from simulator.waste_words import padding_ranking, static_table

if TYPE_CHECKING:
    from simulator.grouping_study import GroupingStudy
    from workloads import Trace

__all__ = ["print_waste"]

SHOWN_PERCENTS = {"p10": 10.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
"""Of a trace's requests: the lengths at which one request is looked at."""
MIX_PERCENTS = tuple(range(5, 100, 10))
"""The lengths for which `search` looks: the middle of each tenth of the requests, so that each counts as often."""
TRACE_SETTINGS = ("trace", "num_requests", "seed")
"""Those that make a difference where only a trace's lengths count."""


def print_waste(  # noqa: PLR0913  a flag each
    name: str | None,
    settings: Mapping[str, Any] | None = None,
    *,
    all_models: bool,
    groupings: Sequence[str],
    request_lengths: Sequence[int],
    threshold_pct: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the waste of one model or of all, grouping by grouping; put tables, pictures and reports into folder `out`.

    `settings` are those of a `Scenario`, for the replay of its trace. Raises ValueError with one line for a person
    where a name or a number is none.
    """
    _check(name, all_models, request_lengths, threshold_pct)
    if out is not None:
        check_folder(out)  # before the runs, not after them
    asked = _stated(settings or {})
    if "trace" in asked:
        wanted = _with_trace(name, asked, groupings, request_lengths, shown=not as_json)
    elif asked:
        raise ScenarioError(f"--{next(iter(asked)).replace('_', '-')}: goes with --trace, which is replayed with it")
    else:
        wanted = _without_trace(name, groupings, request_lengths)
    written = _write(wanted, threshold_pct, out)
    if as_json:
        sys.stdout.write(json.dumps(wanted.rows(), indent=2) + "\n")
    else:
        _print_text(wanted, threshold_pct, written)


@dataclass(frozen=True)
class _Answer:
    wastes: Sequence[ModelWaste]
    study: "GroupingStudy | None" = None
    lengths_in_words: str = "Lengths of requests, in tokens."

    def rows(self) -> list[dict[str, Any]]:
        static = [row for waste in self.wastes for row in waste.rows()]
        return static if self.study is None else [*static, *self.study.rows()]


def _check(name: str | None, all_models: bool, lengths: Sequence[int], threshold_pct: float) -> None:
    if (name is None) != all_models:
        raise ScenarioError("MODEL: name one, or ask for --all-models" + (", not both" if all_models else ""))
    for length in lengths:
        if length < 1:
            raise ScenarioError(f"--request-len: must be at least 1 token, got {length}")
    if not 0 <= threshold_pct < 100:
        raise ScenarioError(f"--threshold: must be 0 to less than 100 percent, got {threshold_pct:g}")


def _stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from a scenario's default."""
    return {name: value for name, value in settings.items() if value != Scenario.model_fields[name].default}


def _policies(groupings: Sequence[str], lengths: Sequence[int]) -> list[GroupingPolicy]:
    """Those named, or all; `search` looks for the best at these lengths."""
    named = [policy_named(name) for name in dict.fromkeys(groupings or POLICIES)]
    return [
        replace(policy, request_tokens=tuple(lengths)) if isinstance(policy, SearchPolicy) else policy
        for policy in named
    ]


# Without a trace.


def _without_trace(name: str | None, groupings: Sequence[str], request_lengths: Sequence[int]) -> _Answer:
    lengths = request_lengths or REQUEST_TOKENS
    policies = _policies(groupings, lengths)
    models = list_models() if name is None else [find_model(name)]
    if name is not None:
        _check_reach(models[0], request_lengths)
    return _Answer([waste_of_model(model, policies, lengths) for model in models])


def _check_reach(model: Model, lengths: Sequence[int]) -> None:
    for length in lengths:
        if length > model.max_model_len:
            raise ScenarioError(
                f"--request-len: {model.name} has at most {model.max_model_len:,} tokens, got {length:,}"
            )


# With a trace.


def _with_trace(
    name: str | None, asked: Mapping[str, Any], groupings: Sequence[str], request_lengths: Sequence[int], *, shown: bool
) -> _Answer:
    if request_lengths:
        raise ScenarioError("--request-len: does not go with --trace, whose lengths count")
    if name is None:
        return _all_models_at_lengths_of(asked, groupings)
    from simulator.engine import workload_of

    scenario = Scenario(model=name, **asked)
    find_model(name)
    if scenario.gpu is None and scenario.kv_cache_memory_bytes is None:
        raise ScenarioError("--gpu: is needed to replay --trace; or state --kv-cache-memory-bytes and --step-time-s")
    if "ideal" in groupings:
        raise ScenarioError("--grouping: ideal is a bound that no server reaches: it does not go with --trace")
    trace = workload_of(scenario)
    words, lengths, mix = _lengths_of(trace)
    policies = _policies(groupings, mix)
    server = plan_server(scenario.model_copy(update={"grouping": None}), policy_named("vllm"))
    waste = waste_of_model(server.model, policies, lengths, server.kept)
    study = _replayed(scenario, trace, [policy for policy in policies if policy.serves], shown=shown)
    return _Answer([waste], study, words)


def _replayed(
    scenario: Scenario, trace: "Trace", policies: Sequence[GroupingPolicy], *, shown: bool
) -> "GroupingStudy":
    from simulator.grouping_study import study_groupings
    from simulator.progress import StudyProgress

    with StudyProgress(trace.name, sum(1 for _ in trace), shown=shown) as progress:
        return study_groupings(scenario, trace, policies, progress.update)


def _all_models_at_lengths_of(asked: Mapping[str, Any], groupings: Sequence[str]) -> _Answer:
    for setting in asked:
        if setting not in TRACE_SETTINGS:
            raise ScenarioError(
                f"--{setting.replace('_', '-')}: goes with one model; with --all-models no trace is replayed,"
                " only its lengths count"
            )
    from simulator.engine import workload_of

    models = list_models()
    words, lengths, mix = _lengths_of(workload_of(Scenario(model=models[0].name, **asked)))
    policies = _policies(groupings, mix)
    words += " The trace was not replayed: name one model for that."
    return _Answer([waste_of_model(model, policies, lengths) for model in models], None, words)


def _lengths_of(trace: "Trace") -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """(in words, lengths to show, lengths to search for) of a trace's requests, in tokens."""
    from simulator.grouping_study import request_tokens_at

    at = {name: request_tokens_at(trace, [percent])[0] for name, percent in SHOWN_PERCENTS.items()}
    shown = ", ".join(f"{name} {tokens:,}" for name, tokens in at.items())
    words = f"Requests of {trace.name}, prompt and output: {shown} tokens."
    return words, tuple(dict.fromkeys(at.values())), request_tokens_at(trace, MIX_PERCENTS)


# What is shown.


def _write(answer: _Answer, threshold_pct: float, out: Path | None) -> list[Path]:
    if out is None:
        return []
    from simulator.waste_report import WasteReport, write_waste

    return write_waste(WasteReport(answer.wastes, threshold_pct, answer.study, answer.lengths_in_words), out)


def _print_text(answer: _Answer, threshold_pct: float, written: Sequence[Path]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    wastes = answer.wastes
    if answer.lengths_in_words != _Answer.lengths_in_words:
        console.print(answer.lengths_in_words, soft_wrap=True)
    shown = [waste for waste in wastes if waste.is_hybrid or len(wastes) == 1]
    for waste in shown:
        console.print(f"{waste.model.name}: percent wasted of what a request of so many tokens holds")
        console.print(static_table(waste))
        for name, reason in waste.refused.items():
            console.print(f"{name}: refused, {reason}", soft_wrap=True)
        console.print()
    if len(shown) < len(wastes):
        console.print(
            f"{len(wastes) - len(shown)} models have layers of one type, which every grouping leaves together."
        )
    for line in padding_ranking(wastes, threshold_pct):
        console.print(line, soft_wrap=True)
    if answer.study is not None:
        _print_study(console, answer.study, threshold_pct)
    for file in written:
        console.print(str(file), soft_wrap=True)


def _print_study(console: Console, study: "GroupingStudy", threshold_pct: float) -> None:
    from simulator.study_words import remarks, study_table, verdict

    console.print()
    console.print(f"{study.model} under {study.trace}: the same requests and bytes under each grouping")
    console.print(study_table(study))
    for line in remarks(study):
        console.print(line, soft_wrap=True)
    console.print()
    for line in verdict(study, threshold_pct):
        console.print(line)
