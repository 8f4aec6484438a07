"""A reference model that attends through the block tables, and the same model without any: they must agree.

Each layer stands alone: queries, keys, values and the inputs of states are projections of what a token is. So what a
layer gives for a token follows from the request's tokens, and can be worked out densely, without blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import torch
from torch.nn.functional import silu, softplus

from kvcache.pages import TORCH_DTYPES, KVPages, slot_mapping
from kvcache.placement import LayerPages
from kvcache.specs import KVCacheSpec
from simulator.batch import Batch
from simulator.request import Request
from simulator.running import contexts_after_step
from simulator.scheduler import Scheduler
from simulator.token_content import TokenContent
from simulator.witness_tables import FIRST_READ

__all__ = ["TOLERANCES", "Attending"]

torch.set_num_threads(1)  # for small tensors they would only wait for each other

WIDTH = 64
"""Of what a token is."""
QUERIES_PER_HEAD = 2
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.5e-2, "fp8_e4m3": 0.2, "fp8_e5m2": 0.35}
"""How far outputs may be off, in parts of the largest: some roundings of what is kept."""


def features(content: TokenContent, num_tokens: int) -> torch.Tensor:
    """[num_tokens, WIDTH], each +-1/8: the bits of a token's mark."""
    bits = np.unpackbits(content.marks(num_tokens).view(np.uint8).reshape(-1, 8), axis=1)
    return torch.from_numpy(bits.astype(np.float32) / 4 - 0.125)


def projection(layer: int, which: int, *shape: int) -> torch.Tensor:
    return torch.randn(WIDTH, *shape, generator=torch.Generator().manual_seed(100 * layer + which))


def project(tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.tensordot(tokens, weights.to(tokens.device), dims=1)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in parts of the largest value if that is above one."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


def attend(
    spec: KVCacheSpec, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, first: int
) -> torch.Tensor:
    """[queries, heads, size] of causal attention within the reach; queries from `start` on, keys from `first` on.

    Several query heads share one head of keys and values.
    """
    at = torch.arange(start, start + len(queries), device=queries.device)[:, None]
    seen = torch.arange(first, first + len(keys), device=queries.device)[None]
    reach = torch.tensor([FIRST_READ[spec.kind](spec, position) for position in at[:, 0].tolist()], device=at.device)
    mask = (seen <= at) & (seen >= reach[:, None])
    grouped = queries.view(len(queries), keys.shape[1], -1, queries.shape[-1])
    scores = torch.einsum("qhgd,khd->hgqk", grouped, keys) / sqrt(keys.shape[-1])
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("hgqk,khd->qhgd", weights, values).reshape(len(queries), -1, values.shape[-1])


class AttentionLayer:
    """Full, windowed, chunked or latent attention with grouped queries."""

    def __init__(self, pages: LayerPages, spec: KVCacheSpec, views: Sequence[torch.Tensor]) -> None:
        self.pages, self.spec = pages, spec
        self.views = [view if view.dim() == 4 else view.unsqueeze(2) for view in views]  # a latent is one head
        self.dtype = TORCH_DTYPES[pages.parts[0].dtype]
        # Not every device can index numbers of one byte: their bytes it can.
        self.movable = [view.view(torch.uint8) if view.element_size() == 1 else view for view in self.views]

    def dense(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(queries, keys, values) of a whole request; latents are their own values."""
        heads, size = self.views[0].shape[2:]
        queries = project(tokens, projection(self.pages.layer, 0, heads * QUERIES_PER_HEAD, size))
        kept = [
            project(tokens, projection(self.pages.layer, 1 + nth, *view.shape[2:]))
            for nth, view in enumerate(self.views)
        ]
        return queries, kept[0], kept[-1]

    def write(self, request: "Computed", block_ids: torch.Tensor, first: int, start: int, end: int) -> None:
        """Keys and values of new tokens."""
        slots = self._slots(block_ids, first, start, end)
        for view, kept in zip(self.movable, request.dense[self.pages.layer][1:], strict=False):
            rounded = kept[start:end].to(self.dtype).view(view.dtype)
            view[slots // self.pages.block_size, slots % self.pages.block_size] = rounded

    def error(self, request: "Computed", block_ids: torch.Tensor, first: int, start: int, end: int) -> float:
        """By how much outputs through the block table differ from dense ones, at most."""
        queries, keys, values = request.dense[self.pages.layer]
        low = FIRST_READ[self.spec.kind](self.spec, start)
        slots = self._slots(block_ids, first, low, end)
        read = [
            view[slots // self.pages.block_size, slots % self.pages.block_size].view(self.dtype).float()
            for view in self.movable
        ]
        paged = attend(self.spec, queries[start:end], read[0], read[-1], start, low)
        return relative_error(paged, attend(self.spec, queries[start:end], keys[:end], values[:end], start, 0))

    def _slots(self, block_ids: torch.Tensor, first: int, start: int, end: int) -> torch.Tensor:
        positions = torch.arange(start, end, device=block_ids.device)
        slots: torch.Tensor = slot_mapping(block_ids, positions, self.pages.block_size, first)
        return slots


class StateLayer:
    """A selective scan behind a short convolution, as in Mamba: states are [taps, inner] and [inner, size]."""

    def __init__(self, pages: LayerPages, spec: KVCacheSpec, views: Sequence[torch.Tensor]) -> None:
        self.pages, self.spec = pages, spec
        self.convolution, self.recurrent = views
        self.num_taps, self.inner = self.convolution.shape[1:]

    def dense(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(inputs, recurrent state after each token) of a whole request."""
        layer, inner, size = self.pages.layer, self.inner, self.recurrent.shape[2]
        self.taps = projection(layer, 0, self.num_taps + 1)[0].to(tokens.device)
        inputs, steps = (project(tokens, projection(layer, which, inner)) for which in (1, 2))
        self.inputs_to_state = project(tokens, projection(layer, 3, size))
        history = torch.cat([torch.zeros(self.num_taps, inner, device=tokens.device), inputs])
        state, states = torch.zeros(inner, size, device=tokens.device), []
        for nth in range(len(tokens)):
            state = self._next(state, history[nth : nth + self.num_taps + 1], steps[nth], self.inputs_to_state[nth])
            states.append(state)
        return inputs, steps, self.inputs_to_state, torch.stack(states)

    def _next(
        self, state: torch.Tensor, window: torch.Tensor, step: torch.Tensor, to_state: torch.Tensor
    ) -> torch.Tensor:
        taken = silu((self.taps[:, None] * window).sum(0))
        pace = softplus(step)[:, None]
        return state * torch.exp(-pace) + pace * taken[:, None] * to_state[None]

    def step(self, request: "Computed", source: int | None, target: int, start: int, end: int) -> float:
        """Go from the state in `source` to the one in `target`; by how much that differs from the dense scan."""
        inputs, steps, to_state, states = request.dense[self.pages.layer]
        if source is None:
            taps, state = torch.zeros_like(self.convolution[0]).float(), torch.zeros_like(self.recurrent[0]).float()
        else:
            taps, state = self.convolution[source].float(), self.recurrent[source].float()
        history = torch.cat([taps, inputs[start:end]])
        for nth in range(end - start):
            window = history[nth : nth + self.num_taps + 1]
            state = self._next(state, window, steps[start + nth], to_state[start + nth])
        self.convolution[target] = history[-self.num_taps :].to(self.convolution.dtype)
        self.recurrent[target] = state.to(self.recurrent.dtype)
        return relative_error(state, states[end - 1])


@dataclass
class Computed:
    """A request with all that is dense of it."""

    dense: dict[int, tuple[torch.Tensor, ...]]
    written: int = 0


@dataclass
class Attending:
    """Watches a run, computes every step of it through the block tables, and compares."""

    pages: KVPages
    scheduler: Scheduler
    content: dict[str, TokenContent] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    """The largest difference of each attention type."""
    num_outputs: int = 0
    lives: dict[int, Computed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers: dict[int, list[AttentionLayer | StateLayer]] = {}
        for pages in self.pages.placement.layers:
            spec = self.scheduler.manager.layout.groups[pages.group].spec
            make = StateLayer if spec.kind == "mamba" else AttentionLayer
            self.layers.setdefault(pages.group, []).append(make(pages, spec, self.pages.views(pages.layer)))

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Compute the step: states, then all keys and values, then attention."""
        num_new = {request.order: count for request, count in scheduler.plan.chunks}
        spans = []
        for request, end in contexts_after_step(scheduler):
            if request.order not in self.lives:
                self.lives[request.order] = self._begin(request, end - num_new[request.order])
            life = self.lives[request.order]
            if end > life.written:
                spans.append((request, life, life.written, end))
                life.written = end
        for number, manager in enumerate(scheduler.manager.managers):
            for nth, group in enumerate(manager.groups):
                if manager.spec.kind == "mamba":
                    self._step_states(group, number, nth, spans)
                else:
                    self._attend(group, number, nth, spans)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        pass

    def _begin(self, request: Request, hit_tokens: int) -> Computed:
        tokens = features(self.content[request.request_id], request.max_tokens).to(self.pages.device)
        layers = [layer for layers in self.layers.values() for layer in layers]
        return Computed({layer.pages.layer: layer.dense(tokens) for layer in layers}, hit_tokens)

    def _attend(self, group: int, number: int, nth: int, spans: list) -> None:
        tables = [request.blocks.tables[number] for request, *_ in spans]
        ids = [torch.tensor(table.ids[nth :: table.manager.num_groups], device=self.pages.device) for table in tables]
        for layer in self.layers[group]:
            for table, blocks, (_, life, start, end) in zip(tables, ids, spans, strict=True):
                layer.write(life, blocks, table.first_held, start, end)
            for table, blocks, (_, life, start, end) in zip(tables, ids, spans, strict=True):
                self._note(layer.spec.kind, layer.error(life, blocks, table.first_held, start, end))

    def _step_states(self, group: int, number: int, nth: int, spans: list) -> None:
        for request, life, start, end in spans:
            source = self._state(request, number, nth, start) if start else None
            target = self._state(request, number, nth, end)
            for layer in self.layers[group]:
                self._note("mamba", layer.step(life, source, target, start, end))

    @staticmethod
    def _state(request: Request, number: int, nth: int, num_tokens: int) -> int:
        table = request.blocks.tables[number]
        position = (num_tokens - 1) // table.manager.block_size
        places = getattr(table, "positions", None) or [table.first_held]
        return table.ids[places.index(position) * table.manager.num_groups + nth]

    def _note(self, kind: str, error: float) -> None:
        self.num_outputs += 1
        self.errors[kind] = max(self.errors.get(kind, 0.0), error)
