"""Static waste: what a request that decodes alone holds under a grouping policy, and what of it nobody needs.

# bytes that one request holds
# needed | padding of layers, pages, states | empty slots | left the window | copies of states | unused small pages

All bytes are those of one rank. Each part is counted by itself, and they add up to what is held.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvcache.errors import InvariantError
from kvcache.grouping import KVCacheGroup
from kvcache.policies import GroupingPolicy, KeptLayers
from kvcache.specs import AttentionSpec, KVCacheSpec, MambaSpec, cdiv

__all__ = ["PADDING", "WASTE_CAUSES", "GroupedLayers", "Waste", "needed_bytes"]

WASTE_CAUSES: dict[str, str] = {
    "padding_layers": "places of a block that no layer of its group uses",
    "page_padding": "attention pages larger than their tokens",
    "state_padding": "state pages larger than the state",
    "empty_slots": "slots of the last block that no token has yet",
    "out_of_window": "slots of tokens that no later token attends to",
    "state_copies": "states beside the running one",
    "unused_small_pages": "small pages of a large one that its request has no use for",
}
"""Why bytes are held and not needed, with the meaning."""

PADDING = ("padding_layers", "page_padding", "state_padding")
"""The causes that come of making blocks equal: a grouping alone decides on them."""


@dataclass(frozen=True)
class Waste:
    """Where the bytes are that one request of `num_tokens` holds while it decodes.

    The invariant `parts-add-up`: needed bytes and those of all causes are what is held.
    """

    num_tokens: int
    """Tokens that have slots, the one that is computed included."""
    held_bytes: int
    needed_bytes: int
    causes: Mapping[str, int]
    """Wasted bytes by cause, one for each of WASTE_CAUSES."""

    def __post_init__(self) -> None:
        parts = self.needed_bytes + sum(self.causes.values())
        if parts != self.held_bytes or min(self.causes.values()) < 0:
            raise InvariantError(f"parts-add-up: {dict(self.causes)} and {self.needed_bytes:,} of {self.held_bytes:,}")

    @property
    def ledger(self) -> dict[str, int]:
        """All parts by name, what is needed first: they add up to `held_bytes`."""
        return {"needed": self.needed_bytes, **self.causes}

    @property
    def wasted_pct(self) -> float:
        """Percent of the held bytes that nobody needs."""
        return 100 * (1 - self.needed_bytes / self.held_bytes) if self.held_bytes else 0.0

    @property
    def padding_pct(self) -> float:
        """Percent of the held bytes that are padding."""
        return 100 * sum(self.causes[cause] for cause in PADDING) / self.held_bytes if self.held_bytes else 0.0


def needed_bytes(specs: Sequence[KVCacheSpec], num_tokens: int) -> int:
    """Bytes that token number `num_tokens` of a request reads and writes, over all layers: the lower bound.

    It reads itself and all tokens before it that are in the layer's window or chunk, or one state. Of a
    chunk it is the most that any token reads, as in `blocks_while_decoding`.
    """
    return sum(_needed_by_layer(spec, num_tokens) for spec in specs)


def _needed_by_layer(spec: KVCacheSpec, num_tokens: int) -> int:
    if isinstance(spec, AttentionSpec):
        return _tokens_read(spec, num_tokens) * spec.token_bytes
    return spec.content_bytes


def _tokens_read(spec: AttentionSpec, num_tokens: int) -> int:
    return num_tokens if spec.reach is None else min(spec.reach[1], num_tokens)


@dataclass(frozen=True)
class GroupedLayers:
    """The layers of a model as a policy groups them."""

    policy: GroupingPolicy
    kept: KeptLayers
    groups: tuple[KVCacheGroup, ...]

    @classmethod
    def of(cls, policy: GroupingPolicy, kept: KeptLayers) -> "GroupedLayers":
        """Raises UnsupportedLayersError where the policy has no groups for these layers."""
        return cls(policy, kept, tuple(policy.groups(policy.align(kept))))

    @property
    def group_size(self) -> int:
        """Places for layers in the largest group."""
        return max((len(group.layers) + group.num_padding_layers for group in self.groups), default=0)

    @property
    def num_padding_layers(self) -> int:
        """Places that no layer uses, over one block of each group."""
        return sum(group.num_padding_layers for group in self.groups)

    def waste(self, num_tokens: int) -> Waste:
        """Of a request of `num_tokens`, whose next token is planned when the one before has been computed."""
        num_blocks = [group.spec.blocks_while_decoding(num_tokens) for group in self.groups]
        held = self.policy.held_bytes(self.groups, num_blocks) if self.groups else []
        causes = dict.fromkeys(WASTE_CAUSES, 0)
        for group, number, group_bytes in zip(self.groups, num_blocks, held, strict=True):
            causes[self.policy.unused_cause] += group_bytes - number * group.bytes_per_block
            for cause, wasted in self._wasted_by_layers(group, number, num_tokens):
                causes[cause] += wasted
        return Waste(num_tokens, sum(held), needed_bytes(self.kept.specs, num_tokens), causes)

    def _wasted_by_layers(self, group: KVCacheGroup, num_blocks: int, num_tokens: int) -> Iterator[tuple[str, int]]:
        """(cause, bytes) within the pages of a group's layers."""
        for layer, grouped in zip(group.layers, group.specs, strict=True):
            spec, page_bytes = self.kept.specs[layer], grouped.page_bytes
            if isinstance(spec, AttentionSpec):
                block_size = group.spec.block_size
                yield "page_padding", num_blocks * (page_bytes - block_size * spec.token_bytes)
                unread = num_blocks * block_size - _tokens_read(spec, num_tokens)
                # Where tokens have left, their last block may be counted twice: `blocks_while_decoding` is a bound.
                empty = min(unread, cdiv(num_tokens, block_size) * block_size - num_tokens)
                yield "empty_slots", empty * spec.token_bytes
                yield "out_of_window", (unread - empty) * spec.token_bytes
            elif isinstance(spec, MambaSpec):
                yield "state_padding", num_blocks * (page_bytes - spec.state_bytes)
                yield "state_copies", (num_blocks - 1) * spec.state_bytes
