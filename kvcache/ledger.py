"""The memory ledger: where every byte of the pool is at one moment.

```
one request's slots in a group with a window, while a step is planned
 | held: left the window | readable by the step | written by the step | empty |
                         first needed           computed              computed + planned
```

Nothing is looked up: blocks are counted as they move (`kvcache.tally`) and tokens come as sums. Only while
requests share blocks of a window or a chunk, their tables are looked at, for a token that two of them
read is one token.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvcache.errors import InvariantError
from kvcache.grouping import KVCacheGroup
from kvcache.manager import KVCacheManager, RequestBlocks
from kvcache.managers import SingleTypeManager
from kvcache.specs import AttentionSpec, MambaSpec

__all__ = ["CACHED_PARTS", "LEDGER_PARTS", "NEEDED_PARTS", "WASTED_PARTS", "Ledger", "TokenCounts"]

LEDGER_PARTS: dict[str, str] = {
    "readable": "tokens that the next step can read",
    "reserved": "slots taken ahead for the tokens that it computes",
    "states": "Mamba states of running requests",
    "out_of_window": "tokens that are still held though no layer reads them any more",
    "empty_slots": "slots of last blocks that no token has yet",
    "page_padding": "attention pages larger than their tokens",
    "state_padding": "state pages larger than the state",
    "padding_layers": "places of a block that no layer of its group uses",
    "unused_small_pages": "small pages of a large one that only its own attention type can take",
    "cached_full": "free blocks of full attention that can be hit",
    "cached_mla": "free blocks of latent attention that can be hit",
    "cached_sliding": "free blocks of sliding windows that can be hit",
    "cached_chunked": "free blocks of chunks that can be hit",
    "cached_mamba": "free states that can be hit",
    "unreachable": "free hashed blocks whose prefix full attention does not have any more",
    "free": "free blocks that hold nothing",
    "null_block": "the block that stands for positions no longer needed",
    "remainder": "the rest of the budget, too small for a block",
}
"""Every byte of the budget is in one of them."""

CACHED_PARTS = tuple(part for part in LEDGER_PARTS if part.startswith("cached_"))
"""Bytes of free blocks that can still be hit."""
NEEDED_PARTS = ("readable", "reserved", "states")
"""Bytes that requests hold and need."""
WASTED_PARTS = (
    "out_of_window",
    "empty_slots",
    "page_padding",
    "state_padding",
    "padding_layers",
    "unused_small_pages",
)
"""Bytes that requests hold and nobody needs."""

HoldingRequests = Callable[[], Iterable[tuple[RequestBlocks, int]]]
"""(blocks, computed tokens) of every request that holds blocks."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Sums over all requests that hold blocks, in tokens."""

    computed: int
    """Tokens whose KV exists before the planned step."""
    planned: int
    """Tokens that the planned step computes."""
    read: tuple[int, ...]
    """For each of the ledger's `reading`, what the next token of each request attends to beside itself."""


@dataclass(frozen=True)
class _GroupBytes:
    """Bytes of one block of a group, part by part."""

    padding_layers: int
    page_padding: int
    state_padding: int
    state_bytes: int
    token_bytes: tuple[int, ...]
    """Of one token in the layers of each reach, those that read everything first."""


class Ledger:
    """Splits a pool's bytes into parts that add up to its budget.

    The invariant `ledger-adds-up`: no part is negative, and together they are the budget.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        layout = manager.layout
        specs = [spec for group in layout.groups for spec in group.specs]
        reaching = {spec.reach: spec for spec in specs if isinstance(spec, AttentionSpec) and spec.reach is not None}
        self.reading: tuple[AttentionSpec, ...] = tuple(reaching.values())
        """A spec of each different window and chunk that layers read within."""
        self._groups = [self._group_bytes(group) for group in layout.groups]

    def _group_bytes(self, group: KVCacheGroup) -> _GroupBytes:
        token_bytes = Counter[tuple[str, int] | None]()
        page_padding = state_padding = state_bytes = 0
        for spec in group.specs:
            if isinstance(spec, AttentionSpec):
                page_padding += spec.page_bytes - spec.content_bytes
                token_bytes[spec.reach] += spec.token_bytes
            elif isinstance(spec, MambaSpec):
                state_padding += spec.page_bytes - spec.state_bytes
                state_bytes += spec.state_bytes
        by_reach = tuple(token_bytes[reach] for reach in (None, *(spec.reach for spec in self.reading)))
        layout = self._manager.layout
        padding_layers = layout.pool_kind.table_block_bytes(group, layout.groups) - group.bytes_per_block
        return _GroupBytes(padding_layers, page_padding, state_padding, state_bytes, by_reach)

    def parts(self, counts: TokenCounts, requests: HoldingRequests) -> dict[str, int]:
        """Bytes of each of `LEDGER_PARTS`. Raises InvariantError where they do not add up."""
        parts = dict.fromkeys(LEDGER_PARTS, 0)
        for nth in range(len(self._manager.managers)):
            self._add_held(parts, nth, counts, requests)
        self._add_free(parts)
        self._check(parts)
        return parts

    def _add_held(self, parts: dict[str, int], nth: int, counts: TokenCounts, requests: HoldingRequests) -> None:
        """What the held blocks of one attention type consist of; in a group of states tokens take no bytes."""
        manager = self._manager.managers[nth]
        tally, block_size = manager.tally, manager.block_size
        computed = counts.computed - tally.num_given_back * block_size
        num_empty = tally.num_positions * block_size - computed - counts.planned
        for nth_group, number in enumerate(manager.groups):
            group = self._groups[number]
            num_blocks = tally.num_blocks(nth_group)
            parts["states"] += num_blocks * group.state_bytes
            parts["state_padding"] += num_blocks * group.state_padding
            parts["page_padding"] += num_blocks * group.page_padding
            parts["padding_layers"] += num_blocks * group.padding_layers
            parts["empty_slots"] += num_empty * sum(group.token_bytes)
            parts["reserved"] += counts.planned * sum(group.token_bytes)
            # Every extra holder counts a block's tokens once more.
            held = computed - tally.extra_holders[nth_group] * block_size
            parts["readable"] += held * group.token_bytes[0]
        for nth_reach, read in enumerate(counts.read):
            self._add_read(parts, nth, nth_reach, read, computed, requests)

    def _add_read(
        self, parts: dict[str, int], nth: int, nth_reach: int, read: int, computed: int, requests: HoldingRequests
    ) -> None:
        """Split the tokens of the layers that read within one window or chunk."""
        manager = self._manager.managers[nth]
        groups = [self._groups[number] for number in manager.groups]
        if not any(group.token_bytes[1 + nth_reach] for group in groups):
            return
        extra_holders = manager.tally.extra_holders
        again = [0] * len(groups)
        if any(extra_holders):
            again = self._read_again(manager, nth, self.reading[nth_reach], requests)
        for group, num_extra, read_again in zip(groups, extra_holders, again, strict=True):
            held = computed - num_extra * manager.block_size
            # A chunk that starts within a block may have lost what it would read of it.
            num_read, bytes_each = min(read - read_again, held), group.token_bytes[1 + nth_reach]
            parts["readable"] += num_read * bytes_each
            parts["out_of_window"] += (held - num_read) * bytes_each

    def _read_again(
        self, manager: SingleTypeManager, nth: int, reach: AttentionSpec, requests: HoldingRequests
    ) -> list[int]:
        """By how much a sum over requests exceeds the tokens that any of them reads, group by group.

        A block may be shared while the request that computes it has not computed it yet: such tokens are
        reserved, not readable.
        """
        # Groups share the same positions, but for equal copies of which some were evicted.
        extra_holders = manager.tally.extra_holders
        if len(set(extra_holders)) == 1:
            return self._read_again_in(manager, nth, reach, requests, range(1)) * manager.num_groups
        return self._read_again_in(manager, nth, reach, requests, range(manager.num_groups))

    def _read_again_in(
        self, manager: SingleTypeManager, nth: int, reach: AttentionSpec, requests: HoldingRequests, nth_groups: range
    ) -> list[int]:
        size, num_groups, shared_among = manager.block_size, manager.num_groups, manager.pool.shared_among
        again = [0] * len(nth_groups)
        spans: dict[int, tuple[int, int, int]] = {}
        for blocks, num_computed in requests():
            table = blocks.tables[nth]
            start = num_computed - reach.seen_before(num_computed)
            first = max(start // size, table.first_held)
            if not table.hashed or table.hashed[-1][1] <= first:
                continue  # what is shared is hashed
            for nth_group in nth_groups:
                held = range(first - table.first_held, table.hashed[-1][1] - table.first_held)
                ids = table.ids[held.start * num_groups + nth_group : held.stop * num_groups : num_groups]
                for index in shared_among(ids):
                    edge = (first + index) * size
                    low, high = max(start, edge), min(num_computed, edge + size)
                    again[nth_group] += max(0, high - low)
                    before = spans.get(ids[index], (low, high, 0))
                    spans[ids[index]] = min(low, before[0]), min(high, before[1]), nth_group
        for low, high, nth_group in spans.values():
            again[nth_group] -= max(0, high - low)
        return again

    def _add_free(self, parts: dict[str, int]) -> None:
        layout, pool = self._manager.layout, self._manager.pool
        for manager in self._manager.managers:
            group = layout.groups[manager.groups[0]]
            block_bytes, tally = layout.pool_kind.table_block_bytes(group, layout.groups), manager.tally
            parts[f"cached_{manager.spec.kind}"] += (tally.num_cached - tally.num_unreachable) * block_bytes
            parts["unreachable"] += tally.num_unreachable * block_bytes
        parts["free"], parts["unused_small_pages"] = pool.free_bytes(layout.bytes_per_block)
        parts["null_block"] = layout.bytes_per_block
        parts["remainder"] = layout.remainder_bytes

    def _check(self, parts: dict[str, int]) -> None:
        layout = self._manager.layout
        budget = layout.pool_bytes + layout.remainder_bytes
        if sum(parts.values()) != budget or min(parts.values()) < 0:
            shown = ", ".join(f"{name} {value:,}" for name, value in parts.items() if value)
            raise InvariantError(f"ledger-adds-up: {shown} of {budget:,} bytes")
