"""A request on its way from the replica that computes its prompt to the one that generates its tokens.

```
prefill:  waits | computes the prompt | its blocks are held until they have been read ─────────┐ free
decode:                               | waits | blocks taken | transfer waits | bytes pass ────┘ waits | generates
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcache.grouping import KVCacheGroup
from kvcache.hashing import PrefixKeys
from kvcache.manager import KVCacheManager
from kvcache.managers import Load
from kvcache.specs import cdiv
from simulator.arrival import Arrival
from simulator.deployment import Deployment
from simulator.link import Transfer
from simulator.request import Request

if TYPE_CHECKING:
    from simulator.disaggregation import DecodeReplica, PrefillReplica

__all__ = ["HandOver", "bytes_if_all_were_full", "bytes_to_fill", "recomputed_tokens", "travelling_bytes"]


class HandOver:
    """One request of a disaggregated fleet: what it is on either side, and what travels for it."""

    __slots__ = (
        "arrival",
        "decode",
        "decode_request",
        "is_lent",
        "padding_bytes",
        "prefill",
        "prefill_request",
        "transfer",
    )

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        """As it came, with all of its prompt and output."""
        self.prefill: PrefillReplica | None = None
        self.prefill_request: Request | None = None
        """None until its prompt has been computed, or it was rejected there."""
        self.is_lent = False
        """Whether its blocks are held at the prefill replica for others to read."""
        self.decode: DecodeReplica | None = None
        self.decode_request: Request | None = None
        """None until it has ended there."""
        self.transfer: Transfer | None = None
        self.padding_bytes = 0
        """By how much whole pages are larger than what travels."""


def recomputed_tokens(deployed: Sequence[KVCacheGroup]) -> int:
    """How many of a prompt's last tokens are left to the decode replica, so that the prefill replica skips them.

    A token comes out of a step that computes one. Keys and values of the prompt's last token may be written twice;
    a state that has read it cannot read it again (vLLM's NIXL connector: `_prefill_backoff`).
    """
    return int(any(group.spec.kind == "mamba" for group in deployed))


def bytes_to_fill(manager: KVCacheManager, loads: Sequence[Load], num_ranks: int) -> tuple[int, int]:
    """(bytes that travel, bytes of padding in their pages) so that these blocks have their contents on every rank.

    A block of attention travels whole, slots without a token included; a state travels as it is. That is what is
    registered with the network card: each layer's page on each rank, so that heads which several ranks keep travel
    to each of them. Places in a block that no layer fills are nobody's.
    """
    content = pages = 0
    for managed, load in zip(manager.managers, loads, strict=True):
        for nth in managed.groups:
            specs = manager.layout.groups[nth].specs
            content += load.num_missing * sum(spec.content_bytes for spec in specs)
            pages += load.num_missing * sum(spec.page_bytes for spec in specs)
    return content * num_ranks, (pages - content) * num_ranks


def travelling_bytes(deployment: Deployment, prompt_tokens: int) -> int:
    """Bytes that travel for a prompt of which a decode replica like this one holds nothing."""
    manager = KVCacheManager(deployment.layout, deployment.cache_settings)
    num_tokens = prompt_tokens - recomputed_tokens(deployment.layout.groups)
    if not num_tokens:
        return 0
    blocks = manager.new_request(PrefixKeys.of_prefix_ids((), 1, manager.hash_unit, 0), prompt_tokens)
    loads = manager.plan_load(blocks, 0, num_tokens)
    return bytes_to_fill(manager, loads, deployment.scenario.tensor_parallel_size)[0]


def bytes_if_all_were_full(deployment: Deployment, prompt_tokens: int) -> int:
    """The same if every layer kept every token, as the model's layers with full attention do."""
    groups = deployment.layout.groups
    full = next(group.spec for group in groups if group.spec.type_key[0] == "full")
    num_blocks = cdiv(prompt_tokens, full.block_size)
    num_layers = sum(len(group.layers) for group in groups)
    return num_layers * num_blocks * full.content_bytes * deployment.scenario.tensor_parallel_size
