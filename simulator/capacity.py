"""What a server's memory holds: the figures that it prints at start, and those that it does not.

# one request in the pool
# blocks at admission, at most ............................. a server starts if this fits for `max_model_len`
# blocks while it decodes ........ what has left its windows, and earlier states, are given back
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import inf, lcm

from kvcache.layout import KVCacheLayout, fit_max_model_len
from kvcache.specs import KVCacheSpec, MambaSpec
from simulator.server import Server

__all__ = ["Capacity", "RequestNeed", "describe_groups"]


@dataclass(frozen=True, slots=True)
class RequestNeed:
    """Bytes of the pool, on each rank, that one request takes."""

    num_tokens: int
    """Prompt and output."""
    concurrency: float
    """How many such requests the pool holds, by the bound at admission."""
    steady_concurrency: float
    """The same while all of them decode."""
    admission_bytes: int
    """At most: while its prompt is computed in steps as large as can be."""
    steady_bytes: int
    """While it decodes its last tokens."""


@dataclass(frozen=True)
class Capacity:
    """The pool of a server that starts."""

    server: Server
    layout: KVCacheLayout

    @classmethod
    def of(cls, server: Server) -> "Capacity":
        """Raises PoolTooSmallError where the server would refuse to start."""
        return cls(server, server.layout())

    @cached_property
    def bytes_per_block(self) -> int:
        """Bytes behind one block of the pool, on the ranks of the stage that has the most."""
        kind = self.server.pool_kind
        return max((kind.block_bytes(stage.groups) for stage in self.server.stages if stage.groups), default=0)

    @property
    def kv_cache_tokens_v020(self) -> int:
        """The "GPU KV cache size" as vLLM printed it until 0.20: blocks of each group, times the smallest block."""
        groups = self.layout.groups
        if not groups:
            return 0
        return self.layout.num_blocks // len(groups) * min(group.spec.block_size for group in groups)

    @property
    def states(self) -> list[MambaSpec]:
        """What the layers with states keep."""
        return [spec for spec in self.server.specs if isinstance(spec, MambaSpec)]

    @property
    def state_bytes(self) -> int:
        """Of the largest state of a layer on one rank, unpadded; 0 without any."""
        return max((state.state_bytes for state in self.states), default=0)

    @property
    def state_page_bytes(self) -> int:
        """Of the page that holds it."""
        return max((group.spec.page_bytes for group in self.layout.groups if group.spec.kind == "mamba"), default=0)

    @property
    def mamba_padding_pct(self) -> float | None:
        """By how much a state is padded, in percent of it; None without states."""
        if not self.states:
            return None
        return 100 * (self.state_page_bytes - self.state_bytes) / self.state_bytes

    @property
    def padding_slots_pct(self) -> float:
        """Places of layers in the groups that no layer fills, in percent of all places."""
        padding = sum(group.num_padding_layers for group in self.layout.groups)
        slots = padding + sum(len(group.layers) for group in self.layout.groups)
        return 100 * padding / slots if slots else 0.0

    @property
    def padding_warnings(self) -> list[tuple[str, int, float]]:
        """(kind, padding layers, percent of the layers of that kind) where there are some: what a server warns of."""
        warnings = []
        for spec, alike in groupby(self.layout.groups, key=lambda group: group.spec):
            groups = list(alike)
            padding = sum(group.num_padding_layers for group in groups)
            if padding:
                warnings.append((spec.kind, padding, 100 * padding / sum(len(group.layers) for group in groups)))
        return warnings

    @property
    def max_bootable_num_seqs(self) -> int | None:
        """The largest `--max-num-seqs` with which a server starts; None without states: they are not what limits then.

        Its graphs of decodes need a state for each request (vLLM 0.32, `config/compilation.py`).
        """
        return self.layout.num_blocks if self.states else None

    @property
    def max_request_tokens(self) -> int:
        """The longest request that can run, up to the model's own length: the start-up estimate."""
        server = self.server
        return fit_max_model_len(
            server.groups,
            server.num_blocks,
            self.layout.max_model_len,
            self.layout.max_in_flight_tokens,
            server.pool_kind,
        )

    @property
    def min_cacheable_prompt_tokens(self) -> int | None:
        """The shortest prompt that can hit the prefix cache; None where nothing is cached.

        Hits end on a block of every group, and one token is always left to compute. A drafter needs the
        last block once more, so with one a hit is a block shorter.
        """
        if not self.server.enable_prefix_caching or not self.layout.groups:
            return None
        alignment = lcm(*(group.spec.block_size for group in self.layout.groups))
        drops_a_block = bool(self.server.model.draft_layers)
        return alignment * (1 + drops_a_block) + 1

    def need(self, num_tokens: int) -> RequestNeed:
        """Of a request of `num_tokens`."""
        groups = self.layout.groups
        admission = self.layout.blocks_per_request(num_tokens)
        decoding = [group.spec.blocks_while_decoding(num_tokens) for group in groups]
        steady = sum(self.layout.pool_kind.num_blocks(groups, decoding))
        num_blocks = self.layout.num_blocks
        return RequestNeed(
            num_tokens=num_tokens,
            concurrency=num_blocks / admission if admission else inf,
            steady_concurrency=num_blocks / steady if steady else inf,
            admission_bytes=admission * self.bytes_per_block,
            steady_bytes=steady * self.bytes_per_block,
        )

    def describe(self) -> dict[str, object]:
        """All of it in plain JSON values."""
        server, layout = self.server, self.layout
        need = self.need(layout.max_model_len)
        return {
            "model": server.model.name,
            "gpu": None if server.gpu is None else server.gpu.name,
            "tensor_parallel": server.scenario.tensor_parallel_size,
            "pipeline_parallel": server.scenario.pipeline_parallel_size,
            "max_model_len": layout.max_model_len,
            "max_num_seqs": server.limits.max_num_seqs,
            "max_num_batched_tokens": server.limits.max_num_batched_tokens,
            "block_size": server.block_size,
            "groups": describe_groups(layout),
            "bytes_per_block": self.bytes_per_block,
            "num_blocks": layout.num_blocks,
            "kv_budget_bytes": _least([stage.budget_bytes for stage in server.stages]),
            "kv_cache_tokens": layout.kv_cache_tokens if layout.groups else 0,
            "kv_cache_tokens_v020": self.kv_cache_tokens_v020,
            "max_concurrency": layout.max_concurrency if layout.groups else None,
            "state_bytes": self.state_bytes,
            "mamba_padding_pct": self.mamba_padding_pct,
            "padding_slots_pct": self.padding_slots_pct,
            "padding_warnings": [
                {"kind": kind, "padding_layers": padding, "pct": pct} for kind, padding, pct in self.padding_warnings
            ],
            "needed_bytes_at_max_model_len": need.admission_bytes,
            "steady_bytes_at_max_model_len": need.steady_bytes,
            "max_request_tokens": self.max_request_tokens,
            "max_bootable_num_seqs": self.max_bootable_num_seqs,
            "min_cacheable_prompt_tokens": self.min_cacheable_prompt_tokens,
            "assumed": list(server.model.assumed),
        }


def _least(budgets: Sequence[int | None]) -> int | None:
    stated = [budget for budget in budgets if budget is not None]
    return min(stated, default=None)


def describe_groups(layout: KVCacheLayout) -> list[dict[str, object]]:
    """Each group in plain JSON values; `page_bytes` are those of one layer on one rank."""
    return [
        {
            "kind": group.spec.kind,
            "layers": len(group.layers),
            "padding_layers": group.num_padding_layers,
            "block_size": group.spec.block_size,
            "page_bytes": group.spec.page_bytes,
            **_reach(group.spec),
        }
        for group in layout.groups
    ]


def _reach(spec: KVCacheSpec) -> dict[str, int]:
    """The window or chunk, where there is one."""
    return {name: value for name in ("window", "chunk") if (value := getattr(spec, name, None)) is not None}
