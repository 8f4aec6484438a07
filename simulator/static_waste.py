"""Static waste of models: what a request that decodes alone holds under each grouping, at several lengths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcache.errors import UnsupportedLayersError
from kvcache.policies import GroupingPolicy, KeptLayers, policy_named
from kvcache.waste import GroupedLayers, Waste
from models_configs import Model
from simulator.server import BLOCK_SIZE, LATENT_BLOCK_SIZE

__all__ = ["PUBLISHED", "ModelWaste", "kept_layers", "waste_of_model"]

PUBLISHED = "vllm"
"""The policy that all others are compared with."""
_NOT_FOR_SERVERS = ("ideal",)  # a bound, not a way to group


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
            if name not in (PUBLISHED, *_NOT_FOR_SERVERS) and self._never_holds_more(grouped)
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
    return {"model": model.name, "policy": policy, "kind": "request", "request_tokens": length}


def waste_of_model(
    model: Model, policies: Sequence[GroupingPolicy], lengths: Sequence[int], kept: KeptLayers | None = None
) -> ModelWaste:
    """Lengths that the model cannot have are left out. `kept`: on a server that somebody described."""
    kept = kept or kept_layers(model)
    grouped, refused = {}, {}
    for policy in policies:
        try:
            grouped[policy.name] = GroupedLayers.of(policy, kept)
        except UnsupportedLayersError as error:
            refused[policy.name] = str(error)
    possible = tuple(length for length in lengths if length <= kept.max_model_len)
    return ModelWaste(model, possible, grouped, refused, GroupedLayers.of(policy_named(PUBLISHED), kept))


def kept_layers(model: Model) -> KeptLayers:
    """What the layers keep on one rank, with a server's defaults: its block size, and a prefix cache if any attends."""
    block_size = BLOCK_SIZE
    specs = model.kv_cache_specs(block_size=block_size)
    if any(spec.kind == "mla" for spec in specs):
        block_size = LATENT_BLOCK_SIZE
        specs = model.kv_cache_specs(block_size=block_size)
    caching = any(spec.kind != "mamba" for spec in specs)
    return KeptLayers(tuple(specs), block_size, caching, model.max_model_len)


def _groups_in_words(grouped: GroupedLayers) -> str:
    """How many."""
    number = len(grouped.groups)
    return f"{number} group{'s' * (number != 1)}"
