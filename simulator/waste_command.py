"""`kvplan waste`: what each way of grouping layers wastes, model by model, without a GPU and without a run."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvcache.errors import UnsupportedLayersError
from kvcache.policies import POLICIES, REQUEST_TOKENS, GroupingPolicy, KeptLayers, SearchPolicy, policy_named
from kvcache.waste import GroupedLayers, Waste
from models_configs import Model, find_model, list_models
from simulator.scenario import ScenarioError
from simulator.server import BLOCK_SIZE, LATENT_BLOCK_SIZE

__all__ = ["ModelWaste", "kept_layers", "print_waste", "waste_of_model"]

_PUBLISHED = "vllm"
_NOT_FOR_SERVERS = ("ideal",)  # a bound, not a way to group
_PADDING_WORDS = {
    "padding_layers": "places without a layer",
    "page_padding": "attention pages",
    "state_padding": "states",
}


def print_waste(  # noqa: PLR0913  a flag each
    name: str | None,
    *,
    all_models: bool,
    groupings: Sequence[str],
    request_lengths: Sequence[int],
    threshold_pct: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the waste of one model or of all, grouping by grouping; put table and picture into folder `out`.

    Raises ValueError with one line for a person where a name or a number is none.
    """
    _check(name, all_models, request_lengths, threshold_pct)
    policies = _policies(groupings, request_lengths or REQUEST_TOKENS)
    models = list_models() if all_models or name is None else [find_model(name)]
    if not all_models:
        _check_reach(models[0], request_lengths)
    wastes = [waste_of_model(model, policies, request_lengths or REQUEST_TOKENS) for model in models]
    if out is not None:
        from simulator.plots_waste import write_waste

        write_waste(wastes, out)
    if as_json:
        sys.stdout.write(json.dumps([row for waste in wastes for row in waste.rows()], indent=2) + "\n")
        return
    _print_text(wastes, threshold_pct, out)


def _check(name: str | None, all_models: bool, lengths: Sequence[int], threshold_pct: float) -> None:
    if (name is None) != all_models:
        raise ScenarioError("MODEL: name one, or ask for --all-models" + (", not both" if all_models else ""))
    for length in lengths:
        if length < 1:
            raise ScenarioError(f"--request-len: must be at least 1 token, got {length}")
    if not 0 <= threshold_pct < 100:
        raise ScenarioError(f"--threshold: must be 0 to less than 100 percent, got {threshold_pct:g}")


def _check_reach(model: Model, lengths: Sequence[int]) -> None:
    for length in lengths:
        if length > model.max_model_len:
            raise ScenarioError(
                f"--request-len: {model.name} has at most {model.max_model_len:,} tokens, got {length:,}"
            )


def _policies(groupings: Sequence[str], lengths: Sequence[int]) -> list[GroupingPolicy]:
    """Those named, or all; `search` looks for the best at the lengths that are shown."""
    named = [policy_named(name) for name in dict.fromkeys(groupings or POLICIES)]
    return [
        replace(policy, request_tokens=tuple(lengths)) if isinstance(policy, SearchPolicy) else policy
        for policy in named
    ]


# What each model wastes


@dataclass(frozen=True)
class ModelWaste:
    """One model under several policies, at several lengths."""

    model: Model
    lengths: tuple[int, ...]
    """Of requests, in tokens: those asked for that the model can have."""
    grouped: Mapping[str, GroupedLayers]
    """By the policy's name, in the order asked for."""
    refused: Mapping[str, str]
    """Policies without groups for these layers, and why."""
    published: GroupedLayers
    """As vLLM groups the layers, whether or not that was asked for."""

    @property
    def is_hybrid(self) -> bool:
        """Whether the layers are of several types, so that policies differ at all."""
        return len(self.published.groups) > 1

    def rows(self) -> Iterable[dict[str, Any]]:
        """One for each policy and length, in plain JSON values; a refused policy has a reason instead of figures."""
        for name, grouped in self.grouped.items():
            for length in self.lengths:
                waste = grouped.waste(length)
                yield {
                    **_row(self.model, name, length),
                    "pool_bytes": waste.held_bytes,
                    "ledger": waste.ledger,
                    "wasted_pct": waste.wasted_pct,
                    "groups": len(grouped.groups),
                    "group_size": grouped.group_size,
                    "padding_slots": grouped.num_padding_layers,
                    "refused": None,
                }
        for name, reason in self.refused.items():
            for length in self.lengths:
                figures = ("pool_bytes", "ledger", "wasted_pct", "groups", "group_size", "padding_slots")
                yield {**_row(self.model, name, length), **dict.fromkeys(figures), "refused": reason}

    @property
    def worst_padding(self) -> Waste | None:
        """At the length at which vLLM pads most, in percent of what is held."""
        wastes = [self.published.waste(length) for length in self.lengths]
        return max(wastes, key=lambda waste: waste.padding_pct, default=None)

    def remedy(self, threshold_pct: float) -> str:
        """Which policy would fix vLLM's padding, in words: one that never holds more, with the fewest groups."""
        no_worse = {
            name: grouped
            for name, grouped in self.grouped.items()
            if name not in (_PUBLISHED, *_NOT_FOR_SERVERS) and self._never_holds_more(grouped)
        }
        most = {name: self._most_padding_pct(grouped) for name, grouped in no_worse.items()}
        fixing = [name for name, pct in most.items() if pct <= threshold_pct]
        if fixing:
            best = min(fixing, key=lambda name: len(no_worse[name].groups))
            return f"{best} fixes it: at most {most[best]:.1f} %, {_groups_in_words(no_worse[best])}"
        better = [name for name, pct in most.items() if pct < self._most_padding_pct(self.published)]
        if not better:
            return "no grouping that holds as little pads less"
        nearest = min(better, key=lambda name: (most[name], len(no_worse[name].groups)))
        return f"none fixes it; {nearest} comes nearest: {most[nearest]:.1f} %, {_groups_in_words(no_worse[nearest])}"

    def _never_holds_more(self, grouped: GroupedLayers) -> bool:
        return all(
            grouped.waste(length).held_bytes <= self.published.waste(length).held_bytes for length in self.lengths
        )

    def _most_padding_pct(self, grouped: GroupedLayers) -> float:
        return max(grouped.waste(length).padding_pct for length in self.lengths)


def _row(model: Model, policy: str, length: int) -> dict[str, Any]:
    return {"model": model.name, "policy": policy, "request_tokens": length}


def waste_of_model(model: Model, policies: Sequence[GroupingPolicy], lengths: Sequence[int]) -> ModelWaste:
    """Lengths that the model cannot have are left out."""
    kept = kept_layers(model)
    grouped, refused = {}, {}
    for policy in policies:
        try:
            grouped[policy.name] = GroupedLayers.of(policy, kept)
        except UnsupportedLayersError as error:
            refused[policy.name] = str(error)
    possible = tuple(length for length in lengths if length <= model.max_model_len)
    return ModelWaste(model, possible, grouped, refused, GroupedLayers.of(policy_named(_PUBLISHED), kept))


def kept_layers(model: Model) -> KeptLayers:
    """What the layers keep on one rank, with a server's defaults: its block size, and a prefix cache if any attends."""
    block_size = BLOCK_SIZE
    specs = model.kv_cache_specs(block_size=block_size)
    if any(spec.kind == "mla" for spec in specs):
        block_size = LATENT_BLOCK_SIZE
        specs = model.kv_cache_specs(block_size=block_size)
    caching = any(spec.kind != "mamba" for spec in specs)
    return KeptLayers(tuple(specs), block_size, caching, model.max_model_len)


# In words


def _print_text(wastes: Sequence[ModelWaste], threshold_pct: float, out: Path | None) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    shown = [waste for waste in wastes if waste.is_hybrid or len(wastes) == 1]
    for waste in shown:
        console.print(f"{waste.model.name}: percent wasted of what a request of so many tokens holds")
        console.print(_table(waste))
        for name, reason in waste.refused.items():
            console.print(f"{name}: refused, {reason}", soft_wrap=True)
        console.print()
    if len(shown) < len(wastes):
        console.print(
            f"{len(wastes) - len(shown)} models have layers of one type, which every grouping leaves together."
        )
    for line in _ranking(wastes, threshold_pct):
        console.print(line, soft_wrap=True)
    if out is not None:
        console.print(f"Table and picture: {out / 'waste.csv'}, {out / 'waste.png'}")


def _table(waste: ModelWaste) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("Grouping", no_wrap=True)
    for heading in ("Groups", "Size", "Padding", *(f"{length:,}" for length in waste.lengths)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, grouped in waste.grouped.items():
        counts = len(grouped.groups), grouped.group_size, grouped.num_padding_layers
        pcts = (f"{abs(grouped.waste(length).wasted_pct):.1f}" for length in waste.lengths)
        table.add_row(name, *map(str, counts), *pcts)
    return table


def _ranking(wastes: Sequence[ModelWaste], threshold_pct: float) -> list[str]:
    """The models that vLLM pads by more than the threshold, the worst first."""
    worst = [(waste, most) for waste in wastes if (most := waste.worst_padding) and most.padding_pct > threshold_pct]
    if not worst:
        return [f"vLLM's padding is nowhere more than {threshold_pct:g} % of what a request holds."]
    worst.sort(key=lambda pair: -pair[1].padding_pct)
    lines = [f"Padding under {_PUBLISHED} is unacceptable (more than {threshold_pct:g} % of what a request holds):"]
    return lines + [f"{nth:>3}. {_in_words(*pair, threshold_pct)}" for nth, pair in enumerate(worst, 1)]


def _in_words(waste: ModelWaste, most: Waste, threshold_pct: float) -> str:
    causes = [words for cause, words in _PADDING_WORDS.items() if most.causes[cause]]
    return (
        f"{waste.model.name}: {most.padding_pct:.1f} % at {most.num_tokens:,} tokens ({', '.join(causes)});"
        f" {waste.remedy(threshold_pct)}"
    )


def _groups_in_words(grouped: GroupedLayers) -> str:
    number = len(grouped.groups)
    return f"{number} group{'s' * (number != 1)}"
