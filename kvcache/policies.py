"""Grouping policies: other answers than vLLM's to which layers share a block table.

A policy is three answers, in this order:

# align       how blocks are made to hold states, from what the layers keep
# groups      which layers share a block table
# pool_kind   where the blocks come from: one pool of equal ones, unless the policy says otherwise

`policy_named` finds one by its name; `kvcache.waste` says what each costs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import gcd
from typing import ClassVar

from kvcache.alignment import KERNEL_BLOCK, LATENT_KERNEL_BLOCK, align_states
from kvcache.errors import KVCacheError
from kvcache.grouping import KVCacheGroup, group_layers
from kvcache.packing import Bucket, buckets_by_type, packings, unpadded
from kvcache.pool_kinds import ONE_SIZE, TWO_LEVELS, PoolKind
from kvcache.specs import AttentionSpec, KVCacheSpec, MambaSpec, cdiv

__all__ = ["POLICIES", "REQUEST_TOKENS", "GroupingPolicy", "KeptLayers", "SearchPolicy", "policy_named"]

REQUEST_TOKENS = (128, 512, 2_048, 8_192, 32_768, 131_072)
"""Lengths of requests, in tokens, that `search` looks at unless told otherwise."""


@dataclass(frozen=True)
class KeptLayers:
    """What the layers of a model keep on one rank, before blocks are aligned, and what decides on the alignment."""

    specs: tuple[KVCacheSpec, ...]
    """One for each layer that keeps something, in the model's order; pages and states unpadded."""
    block_size: int
    """Tokens in a block, as asked for."""
    enable_prefix_caching: bool
    max_model_len: int
    """Tokens of the longest request."""

    def aligned(self) -> list[KVCacheSpec]:
        """With one page size for attention and states, as vLLM 0.32 does it."""
        return align_states(self.specs, self.block_size, self.enable_prefix_caching, self.max_model_len)

    def resized(self, block_size: int) -> list[KVCacheSpec]:
        """With attention in blocks of `block_size` tokens and the states as small as they are."""
        caches_states = self.enable_prefix_caching and any(isinstance(spec, AttentionSpec) for spec in self.specs)
        mode, state_block = ("align", block_size) if caches_states else ("none", self.max_model_len)
        return [
            spec.in_mode(mode, state_block) if isinstance(spec, MambaSpec) else spec.with_block_size(block_size)
            for spec in self.specs
        ]


class GroupingPolicy(ABC):
    """How layers become groups."""

    name: ClassVar[str]
    unused_cause: ClassVar[str] = "padding_layers"
    """What bytes of a block are called that no page of its group takes, in the words of `kvcache.waste`."""
    pool_kind: ClassVar[PoolKind] = ONE_SIZE
    """Where the blocks come from."""
    serves: ClassVar[bool] = True
    """Whether a server can group so, or it is a bound only."""

    def align(self, kept: KeptLayers) -> list[KVCacheSpec]:
        """The specs to group, in the same order."""
        return kept.aligned()

    @abstractmethod
    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """The groups of layers that were aligned. Raises UnsupportedLayersError where these cannot be grouped."""

    def held_bytes(self, groups: Sequence[KVCacheGroup], num_blocks: Sequence[int]) -> list[int]:
        """Bytes of one rank's memory behind so many blocks of each group."""
        block_bytes = self.pool_kind.block_bytes(groups)
        return [number * block_bytes for number in self.pool_kind.num_blocks(groups, num_blocks)]


# One group size for all types


@dataclass(frozen=True)
class VLLMPolicy(GroupingPolicy):
    """vLLM 0.32: the smallest type sets the group size, unless all types are within 1.5 times of each other."""

    name = "vllm"

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """As a server has them."""
        return group_layers(specs)


@dataclass(frozen=True)
class UnifiedPolicy(GroupingPolicy):
    """The hybrid manager off: windows and chunks are kept whole, in one group with full attention.

    Gemma-2 at 8,192 tokens: half of the layers need 4,096 of them, so 1 − (1/2 + 1/2 × 1/2) = 25 % are wasted.
    Ministral as published, at 131,072: 27 of 36 layers need 32,768, a quarter: 1 − (9 + 27/4) / 36 = 56.25 %.
    Where the length does not fill its last block, up to a block less one token is held besides.
    """

    name = "unified"

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """One group. Raises UnsupportedLayersError for states beside attention, and for several windows."""
        return group_layers(specs, hybrid=False)


class EqualSizePolicy(GroupingPolicy):
    """Equal pages and one group size, by a rule of its own; layers of one type stay one group as in vLLM."""

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """Each type in as few groups of that size as hold it, the layers dealt out in turn."""
        buckets = _equal_page_buckets(specs)
        if len(buckets) <= 1:
            return group_layers(specs)
        return _cut(buckets, self.group_size([len(layers) for layers in buckets.values()]))

    @abstractmethod
    def group_size(self, bucket_sizes: Sequence[int]) -> int:
        """Layers in a group, given those of each type."""


@dataclass(frozen=True)
class PerLayerPolicy(EqualSizePolicy):
    """The design document's case 1: a block holds the tokens of one layer, each layer has a table of its own."""

    name = "per-layer"

    def group_size(self, bucket_sizes: Sequence[int]) -> int:
        """One."""
        return 1


@dataclass(frozen=True)
class SmallestPolicy(EqualSizePolicy):
    """The design document's case 3, without vLLM's exception: the smallest type always sets the group size."""

    name = "smallest"

    def group_size(self, bucket_sizes: Sequence[int]) -> int:
        """The smallest number of layers."""
        return min(bucket_sizes)


@dataclass(frozen=True)
class GcdPolicy(EqualSizePolicy):
    """The design document's hope for 20 full and 30 sliding layers, groups of 10: never a padding layer."""

    name = "gcd"

    def group_size(self, bucket_sizes: Sequence[int]) -> int:
        """The greatest common divisor of the numbers of layers."""
        return gcd(*bucket_sizes)


def _equal_page_buckets(specs: Sequence[KVCacheSpec]) -> dict[KVCacheSpec, list[int]]:
    """Layers by what they keep once vLLM has made their pages equal, both in the model's order."""
    spec_of_layer = {layer: group.spec for group in group_layers(specs) for layer in group.layers}
    buckets: dict[KVCacheSpec, list[int]] = {}
    for layer in sorted(spec_of_layer):
        buckets.setdefault(spec_of_layer[layer], []).append(layer)
    return buckets


def _cut(buckets: dict[KVCacheSpec, list[int]], size: int) -> list[KVCacheGroup]:
    groups = []
    for spec, layers in buckets.items():
        num_groups = cdiv(len(layers), size)
        for members in (tuple(layers[first::num_groups]) for first in range(num_groups)):
            groups.append(KVCacheGroup(spec, members, num_padding_layers=size - len(members)))
    return groups


# Blocks of equal bytes, filled with as many layers as fit


@dataclass(frozen=True)
class PackedPolicy(GroupingPolicy):
    """vLLM's packing for layouts in which a block's layers lie side by side, so that pages may differ.

    Layers are put into buckets by type, each with its own pages: attention in its own block size, states
    unpadded. A bucket is dealt out to as many groups as it takes for each to fit into a block. Of all
    blocks that some number of groups of some bucket fills, and that hold the smallest bucket, the one is
    taken that leaves the fewest bytes unused over one block of each group; of equals, the one with fewer
    groups. vLLM counts layers where this counts bytes, and pads pages to a few sizes before. Both overlook
    that a long request has most blocks in full attention's group: what that one leaves unused costs more.

    Where all pages are equal already, it is vLLM's rule.
    """

    name = "packed"

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """Groups whose blocks have a part at the end that no layer uses."""
        buckets = buckets_by_type([unpadded(spec) for spec in specs])
        if len(buckets) <= 1 or len({spec.page_bytes for bucket in buckets for spec in bucket.specs}) == 1:
            return group_layers(specs)
        tried = packings(buckets, least_bytes=min(bucket.page_bytes for bucket in buckets))
        _, groups = min(tried, key=lambda packing: (packing[0] * len(packing[1]), len(packing[1])))
        return groups


@dataclass(frozen=True)
class SearchPolicy(GroupingPolicy):
    """The grouping that holds the fewest bytes for a mix of request lengths, each length once.

    Tried are vLLM's own; equal pages in groups of 1, 2, ... layers up to the largest type's; and blocks
    that are filled with as many layers as fit, differently many for each type, whose pages keep their
    size (as `packed`, but for every size of block). Only what costs no more than vLLM's at each of the
    lengths is taken; of equals, what has fewer groups.
    """

    request_tokens: tuple[int, ...] = REQUEST_TOKENS
    """Tokens of the requests."""
    bytes_per_group: int = 0
    """What a request's table in one more group is held to cost."""

    name = "search"

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """The best of all candidates."""
        published = group_layers(specs)
        if len(published) <= 1:
            return published
        buckets = _equal_page_buckets(specs)
        candidates = [published]
        candidates += [_cut(buckets, size) for size in range(1, max(map(len, buckets.values())) + 1)]
        raw_buckets = buckets_by_type([unpadded(spec) for spec in specs])
        candidates += [packed for _, packed in packings(raw_buckets, least_bytes=0)]
        limits = self._costs(published)
        best, best_rank = published, (sum(limits), len(published))
        for groups in candidates[1:]:
            costs = self._costs(groups)
            rank = sum(costs), len(groups)
            if rank < best_rank and all(cost <= limit for cost, limit in zip(costs, limits, strict=True)):
                best, best_rank = groups, rank
        return best

    def _costs(self, groups: Sequence[KVCacheGroup]) -> list[int]:
        """Bytes that a request of each length is held to cost."""
        num_groups: dict[KVCacheSpec, int] = {}
        for group in groups:
            num_groups[group.spec] = num_groups.get(group.spec, 0) + 1
        block_bytes, penalty = ONE_SIZE.block_bytes(groups), self.bytes_per_group * len(groups)
        return [
            penalty + block_bytes * sum(spec.blocks_while_decoding(length) * num for spec, num in num_groups.items())
            for length in self.request_tokens
        ]


# States beside attention


@dataclass(frozen=True)
class DocumentMambaPolicy(GroupingPolicy):
    """The design document's work in progress: a state is compared with all attention layers of a group.

    The attention block grows until block_size × bytes of a token × attention layers in a group hold one
    state, instead of until one layer's page does. A block of a state group is then the same bytes, which
    span the pages of the attention group's layers. The document gives each block one state; here it gets
    as many as fit, and each is padded to its share.

    Without states beside attention it is vLLM's rule.
    """

    name = "document-mamba"

    def align(self, kept: KeptLayers) -> list[KVCacheSpec]:
        """Attention blocks grown, states not padded yet: that depends on how many share a block."""
        attention = [spec for spec in kept.specs if isinstance(spec, AttentionSpec)]
        state_bytes = max((spec.state_bytes for spec in kept.specs if isinstance(spec, MambaSpec)), default=0)
        if not attention or not state_bytes:
            return kept.aligned()
        kernel_block = LATENT_KERNEL_BLOCK if attention[0].kind == "mla" else KERNEL_BLOCK
        step = max(kernel_block, kept.block_size)
        step_bytes = ONE_SIZE.block_bytes(group_layers([spec.with_block_size(step) for spec in attention]))
        return kept.resized(max(kept.block_size, step * cdiv(state_bytes, step_bytes)))

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """Attention as in vLLM, then states in blocks as large."""
        attention = [layer for layer, spec in enumerate(specs) if isinstance(spec, AttentionSpec)]
        if len(attention) in (0, len(specs)):
            return group_layers(specs)
        attending = [
            replace(group, layers=tuple(attention[place] for place in group.layers))
            for group in group_layers([specs[layer] for layer in attention])
        ]
        states = [bucket for bucket in buckets_by_type(specs) if isinstance(bucket.specs[0], MambaSpec)]
        block_bytes = ONE_SIZE.block_bytes(attending)
        return attending + [group for bucket in states for group in _shared_out(bucket, block_bytes)]


def _shared_out(states: Bucket, block_bytes: int) -> list[KVCacheGroup]:
    """States in blocks of `block_bytes`, each padded to an equal share of the fullest block."""
    groups = states.groups_in(block_bytes)
    most = max(len(group.layers) for group in groups)
    spec = states.specs[0].with_page_bytes(block_bytes // most)
    return [KVCacheGroup(spec, group.layers, num_padding_layers=most - len(group.layers)) for group in groups]


# More than one size of block


@dataclass(frozen=True)
class TwoLevelPolicy(GroupingPolicy):
    """Two levels of pages, in the manner of Jenga (SOSP 2025).

    A small page has a block's tokens, or the state, of all layers of one type, unpadded. A large page is as
    large as the least common multiple of all small ones and is split into small pages of one type, for one
    request: what that request leaves of its last large page of each type is wasted. The figures are those
    of one request alone; Jenga lets others in where no large page is free.
    """

    name = "two-level"
    unused_cause = "unused_small_pages"
    pool_kind = TWO_LEVELS

    def align(self, kept: KeptLayers) -> list[KVCacheSpec]:
        """Blocks as asked for: nothing has to be equal."""
        return kept.resized(kept.block_size)

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """One for each type."""
        return [group for bucket in buckets_by_type(specs) for group in bucket.groups_in(bucket.page_bytes)]


@dataclass(frozen=True)
class IdealPolicy(GroupingPolicy):
    """Every layer keeps exactly what its next token reads: a lower bound, which no pool of blocks reaches."""

    name = "ideal"
    serves = False

    def align(self, kept: KeptLayers) -> list[KVCacheSpec]:
        """Blocks of one token, and no state but the running one."""
        return [
            replace(spec, num_speculative_blocks=0) if isinstance(spec, MambaSpec) else spec
            for spec in kept.resized(block_size=1)
        ]

    def groups(self, specs: Sequence[KVCacheSpec]) -> list[KVCacheGroup]:
        """Each layer by itself."""
        return [KVCacheGroup(spec, (layer,)) for layer, spec in enumerate(specs)]

    def held_bytes(self, groups: Sequence[KVCacheGroup], num_blocks: Sequence[int]) -> list[int]:
        """Each block takes what its own layer needs."""
        return [number * group.bytes_per_block for group, number in zip(groups, num_blocks, strict=True)]


POLICIES: dict[str, GroupingPolicy] = {
    policy.name: policy
    for policy in (
        VLLMPolicy(),
        PerLayerPolicy(),
        SmallestPolicy(),
        GcdPolicy(),
        SearchPolicy(),
        UnifiedPolicy(),
        PackedPolicy(),
        DocumentMambaPolicy(),
        TwoLevelPolicy(),
        IdealPolicy(),
    )
}
"""By name."""


def policy_named(name: str) -> GroupingPolicy:
    """The policy of this name. Raises KVCacheError for an unknown one, with the nearest."""
    if name in POLICIES:
        return POLICIES[name]
    near = get_close_matches(name, POLICIES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(POLICIES)}"
    raise KVCacheError(f"unknown grouping {name!r}; {hint}")
