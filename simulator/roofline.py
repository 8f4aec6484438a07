"""Step times from first principles.

The roofline walks through the kernels of a forward pass in the order in which a GPU runs them. Each kind
of kernel takes as long as the slower of its arithmetic and its memory traffic (or somewhat longer, where they
overlap in part only); the kinds follow one another, so their times add up.

    # one step
    # fixed cost | projections, MLPs | experts | attention of prefills | of decodes | states | logits | all-reduces
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from models_configs import Everything, Layer, MixingCost, Model, Reach, Routing
from models_configs.quantization import Compute, StoredWeights, WeightFormat
from simulator.batch import Batch
from simulator.efficiencies import PRICED, Efficiencies, efficiencies_of
from simulator.hardware import Gpu
from simulator.latency import Work

__all__ = ["ROOFLINE", "Roofline"]

MOST_SIZES = 1 << 14
"""Numbers of tokens and requests of a step that are remembered: a server sees the same again and again."""
ROOFLINE = "roofline"
"""Where step times are from that have default efficiencies."""


def _overlapped_s(compute_s: float, traffic_s: float, overlap: float) -> float:
    """How long arithmetic and traffic take together: their `overlap`-norm (`Efficiencies.matmul_overlap`)."""
    longer_s = max(compute_s, traffic_s)
    if overlap == inf or not longer_s:
        return longer_s
    # of their ratio, so that no power is too small for a float
    ratio: float = (min(compute_s, traffic_s) / longer_s) ** overlap
    root: float = (1.0 + ratio) ** (1.0 / overlap)
    return longer_s * root


def _shares_s(compute_s: float, traffic_s: float, overlap: float) -> tuple[float, float]:
    """The same, dealt out to arithmetic and traffic as it grows with each: of a maximum the longer has all.

    A norm is homogeneous, so by Euler its value is the sum of each argument times the slope along it.
    """
    if overlap == inf:
        return (compute_s, 0.0) if compute_s > traffic_s else (0.0, traffic_s)
    together_s = _overlapped_s(compute_s, traffic_s, overlap) or 1.0
    compute_slope: float = (compute_s / together_s) ** (overlap - 1.0)
    traffic_slope: float = (traffic_s / together_s) ** (overlap - 1.0)
    return compute_s * compute_slope, traffic_s * traffic_slope


@dataclass(frozen=True, slots=True)
class _Stage:
    """A kind of kernel whose work grows with what it is given, but whose weights must be read anyway."""

    seconds_per_item: float
    """Arithmetic for one token (or row)."""
    weights_s: float
    """Reading the weights."""
    overlap: float

    def seconds(self, num_items: int) -> float:
        return _overlapped_s(num_items * self.seconds_per_item, self.weights_s, self.overlap)

    def shares_s(self, num_items: int) -> tuple[float, float]:
        """Seconds, as arithmetic and reading share them."""
        return _shares_s(num_items * self.seconds_per_item, self.weights_s, self.overlap)

    def least_s(self, num_items: float, num_steps: float) -> float:
        # A sum of norms is at least the norm of the sums: the triangle inequality.
        return _overlapped_s(num_items * self.seconds_per_item, num_steps * self.weights_s, self.overlap)


@dataclass(frozen=True, slots=True)
class _ExpertStage:
    """Equal routed experts of some layers, of which a step reads those that its tokens choose."""

    routing: Routing
    seconds_per_token: float
    expert_read_s: float
    """Reading one expert in each of those layers."""
    overlap: float

    def seconds(self, num_tokens: int) -> float:
        return _overlapped_s(num_tokens * self.seconds_per_token, self._reads_s(num_tokens), self.overlap)

    def shares_s(self, num_tokens: int) -> tuple[float, float]:
        """Seconds, as arithmetic and reading share them."""
        return _shares_s(num_tokens * self.seconds_per_token, self._reads_s(num_tokens), self.overlap)

    def _reads_s(self, num_tokens: int) -> float:
        # A token misses an expert with probability 1 - k/E, all tokens miss it with its power:
        # choices taken as even and independent.
        routing = self.routing
        missed = (1 - routing.top_k / routing.num_experts) ** num_tokens
        return routing.num_experts * (1 - missed) * self.expert_read_s

    def least_s(self, work: Work) -> float:
        # Reading is concave in a step's tokens: the least for each of them in the fullest step, and in any step no less
        # than for one token.
        reads_s = self._reads_s(work.max_step_tokens) * work.num_tokens / work.max_step_tokens
        reads_s = max(reads_s, work.num_steps * self._reads_s(1))
        return _overlapped_s(work.num_tokens * self.seconds_per_token, reads_s, self.overlap)


@dataclass(frozen=True, slots=True)
class _AttentionStage:
    """All layers of one reach."""

    reach: Reach
    prefill_seconds_per_pair: float
    prefill_seconds_per_token: float
    """Arithmetic for each new token, whatever it attends to."""
    seconds_per_token_read: float
    decode_seconds_per_token: float
    """For each token that a decode attends to: the slower of arithmetic and traffic, which grow alike."""

    def prefill_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        return sum(self.slower(chunks))

    def slower(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, float]:
        """Of prefills: seconds, of which either the arithmetic or the reading has all and the other nothing."""
        reach = self.reach
        num_pairs = num_tokens = num_tokens_read = 0
        for num_new, num_computed in chunks:
            num_pairs += reach.num_pairs(num_new, num_computed)
            num_tokens += num_new
            num_tokens_read += reach.seen_before(num_computed) + num_new
        compute_s = num_pairs * self.prefill_seconds_per_pair + num_tokens * self.prefill_seconds_per_token
        read_s = num_tokens_read * self.seconds_per_token_read
        return (compute_s, 0.0) if compute_s > read_s else (0.0, read_s)

    def decode_slower(self, num_tokens_seen: int) -> tuple[float, float]:
        """The same for decodes."""
        seconds = num_tokens_seen * self.decode_seconds_per_token
        return (0.0, seconds) if self.decode_seconds_per_token == self.seconds_per_token_read else (seconds, 0.0)


class Roofline:
    """Step times from first principles: FLOPs over peak, bytes over bandwidth, and fixed costs.

    All that depends on the model and the hardware alone is worked out at birth: a step then costs a
    few multiplications for each stage and prefill chunk.
    """

    def __init__(
        self,
        model: Model,
        gpu: Gpu,
        tensor_parallel: int = 1,
        kv_cache_dtype: str = "auto",
        efficiencies: Efficiencies | None = None,
        source: str = ROOFLINE,
    ) -> None:
        """Precompute. `source`: what is known of the efficiencies, in words.

        Raises ValueError where the model cannot be split over `tensor_parallel` ranks.
        """
        self.source = source
        self._gpu = gpu
        self._efficiencies = efficiencies or efficiencies_of(gpu, async_scheduling=True)
        self._tensor_parallel = tensor_parallel
        self._element_bytes = model.element_bytes
        options = model.kv_cache_options(tensor_parallel=tensor_parallel, kv_cache_dtype=kv_cache_dtype)
        costs = Counter(model.mixing_costs(options))

        # all that every token passes: projections, dense MLPs, shared experts, routers, norms
        self._dense = self._matmul_stage(model.shared_weights(tensor_parallel))
        self._experts = [
            self._expert_stage(routing, count) for routing, count in Counter(model.routings(tensor_parallel)).items()
        ]
        self._logits = self._logits_stage(model)
        # full attention first, then as Batch.decode_window_tokens has them
        self._attention = [self._attention_stage(reach, costs) for reach in (Everything(), *model.reaches)]
        self._scan_token_s, self._state_request_s = self._state_seconds(costs)
        self._decode_request_s = self._efficiencies.request_layer_s * sum(
            count for cost, count in costs.items() if cost.bytes_per_token
        )
        self._link_token_s, self._link_row_s = self._link_seconds(model)
        self._fixed_parts_s = self._fixed_seconds(model)
        self._fixed_s = sum(self._fixed_parts_s.values())
        self._rest_s: Callable[[int, int], float] = lru_cache(MOST_SIZES)(self._without_attention_s)

    def durations_s(self, batch: Batch) -> list[float]:
        """How long each step of the batch takes: [batch.num_steps], seconds.

        Decodes' contexts grow linearly, and so does the time: in a row of steps nothing else changes.
        """
        first_s = self._first_step_s(batch)
        if batch.num_steps == 1:
            return [first_s]
        growth_s = self._growth_s(batch)
        return [first_s + growth_s * step for step in range(batch.num_steps)]

    def least_s(self, work: Work) -> float:
        """Seconds that no schedule of this work can do without: each kind of kernel at its best, one after the other.

        A step's time is a sum of parts that are linear in what it computes, or a norm of linear ones; summed over
        all steps each is at least what it is for the sums (those of experts: see there).
        """
        seconds = work.num_steps * self._fixed_s
        seconds += self._dense.least_s(work.num_tokens, work.num_steps)
        seconds += self._logits.least_s(work.num_rows, work.num_steps)
        seconds += work.num_tokens * (self._link_token_s + self._scan_token_s)
        seconds += work.num_rows * (self._link_row_s + self._state_request_s + self._efficiencies.request_s)
        seconds += work.num_decodes * self._decode_request_s
        for experts in self._experts:
            seconds += experts.least_s(work)
        for stage, pairs, reads in zip(self._attention, work.prefill_pairs, work.decode_reads, strict=True):
            seconds += pairs * stage.prefill_seconds_per_pair + reads * stage.decode_seconds_per_token
            seconds += (work.num_tokens - work.num_decodes) * stage.prefill_seconds_per_token
        return seconds

    def _growth_s(self, batch: Batch) -> float:
        """By how much each step of a row takes longer than the one before it."""
        if not batch.num_decodes:
            return 0.0
        growths = (batch.num_decodes, *batch.decode_window_growth)
        return sum(
            growth * stage.decode_seconds_per_token for stage, growth in zip(self._attention, growths, strict=True)
        )

    def _first_step_s(self, batch: Batch) -> float:
        num_decodes = batch.num_decodes
        num_requests = num_decodes + len(batch.prefill_chunks)
        seconds = self._rest_s(batch.num_tokens, num_requests)
        if batch.prefill_chunks:
            for stage in self._attention:
                seconds += stage.prefill_s(batch.prefill_chunks)
        if num_decodes:
            seconds += num_decodes * self._decode_request_s
            context_tokens = (batch.decode_context_tokens, *batch.decode_window_tokens)
            for stage, before in zip(self._attention, context_tokens, strict=True):
                seconds += (before + num_decodes) * stage.decode_seconds_per_token  # each sees itself too
        return seconds

    def _without_attention_s(self, num_tokens: int, num_requests: int) -> float:
        """What does not depend on contexts."""
        # every scheduled request gets logits for its last token, even where the prompt goes on
        seconds = self._fixed_s + self._dense.seconds(num_tokens) + self._logits.seconds(num_requests)
        seconds += num_tokens * (self._link_token_s + self._scan_token_s)
        seconds += num_requests * (self._link_row_s + self._state_request_s + self._efficiencies.request_s)
        for experts in self._experts:
            seconds += experts.seconds(num_tokens)
        return seconds

    def parts_s(self, batch: Batch) -> dict[str, float]:
        """What each figure of `Efficiencies` costs in the first step: seconds by field, which add up to its duration.

        For calibration. Of the two that limit a kind of kernel each has what its own growth adds: the slower all,
        unless they overlap in part.
        """
        parts = dict(self._fixed_parts_s)
        num_requests, num_tokens = batch.num_decodes + len(batch.prefill_chunks), batch.num_tokens
        limits = [
            ("matmul_compute", "weight_bandwidth", self._dense.shares_s(num_tokens)),
            ("matmul_compute", "weight_bandwidth", self._logits.shares_s(num_requests)),
            *(("expert_compute", "expert_bandwidth", experts.shares_s(num_tokens)) for experts in self._experts),
        ]
        if batch.prefill_chunks:
            limits += [
                ("prefill_attention_compute", "kv_bandwidth", stage.slower(batch.prefill_chunks))
                for stage in self._attention
            ]
        if batch.num_decodes:
            contexts = (batch.decode_context_tokens, *batch.decode_window_tokens)
            limits += [
                ("decode_attention_compute", "kv_bandwidth", stage.decode_slower(before + batch.num_decodes))
                for stage, before in zip(self._attention, contexts, strict=True)
            ]
        for compute, traffic, (compute_s, traffic_s) in limits:
            parts[compute] += compute_s
            parts[traffic] += traffic_s
        parts["scan_compute"] += num_tokens * self._scan_token_s
        parts["kv_bandwidth"] += num_requests * self._state_request_s
        parts["link_bandwidth"] += num_tokens * self._link_token_s + num_requests * self._link_row_s
        parts["request_s"] += num_requests * self._efficiencies.request_s
        parts["request_layer_s"] += batch.num_decodes * self._decode_request_s
        return parts

    # What the constructor works out

    def _compute_s(self, flops: float, efficiency: float, weight_format: WeightFormat | None = None) -> float:
        compute: Compute = "bf16" if weight_format is None else weight_format.compute
        return flops / (self._gpu.flops_per_s(compute) * efficiency)

    def _transfer_s(self, num_bytes: float, efficiency: float) -> float:
        return num_bytes / (self._gpu.bandwidth_bytes_per_s * efficiency)

    def _matmul_stage(self, stored: Iterable[StoredWeights]) -> _Stage:
        efficiencies, stored = self._efficiencies, list(stored)
        return _Stage(
            seconds_per_item=sum(
                self._compute_s(2 * number, efficiencies.matmul_share(weight_format), weight_format)
                for weight_format, number, _ in stored
            ),
            weights_s=self._transfer_s(sum(weights.num_bytes for weights in stored), efficiencies.weight_bandwidth),
            overlap=efficiencies.matmul_overlap,
        )

    def _logits_stage(self, model: Model) -> _Stage:
        num_parameters = model.embedding_parameters(self._tensor_parallel)
        return self._matmul_stage([StoredWeights(None, num_parameters, num_parameters * model.element_bytes)])

    def _expert_stage(self, routing: Routing, num_layers: int) -> _ExpertStage:
        efficiencies = self._efficiencies
        flops = 2 * num_layers * routing.top_k * routing.expert_parameters
        return _ExpertStage(
            routing=routing,
            seconds_per_token=self._compute_s(
                flops, efficiencies.expert_share(routing.weight_format), routing.weight_format
            ),
            expert_read_s=self._transfer_s(
                num_layers * routing.expert_bytes, efficiencies.expert_reading_share(routing.weight_format)
            ),
            overlap=efficiencies.matmul_overlap,
        )

    def _attention_stage(self, reach: Reach, costs: Counter[MixingCost]) -> _AttentionStage:
        efficiencies = self._efficiencies
        alike = [(cost, count) for cost, count in costs.items() if cost.reach == reach]
        flops_per_pair = sum(count * cost.flops_per_pair for cost, count in alike)
        read_s = self._transfer_s(sum(count * cost.bytes_per_token for cost, count in alike), efficiencies.kv_bandwidth)
        pair_s = self._compute_s(flops_per_pair, efficiencies.prefill_attention_compute)
        return _AttentionStage(
            reach=reach,
            prefill_seconds_per_pair=pair_s,
            prefill_seconds_per_token=pair_s * efficiencies.prefill_attention_pairs,
            seconds_per_token_read=read_s,
            decode_seconds_per_token=max(
                self._compute_s(flops_per_pair, efficiencies.decode_attention_compute), read_s
            ),
        )

    def _state_seconds(self, costs: Counter[MixingCost]) -> tuple[float, float]:
        """Scanning one token, and moving the states of one request."""
        flops = sum(count * cost.flops_per_token for cost, count in costs.items())
        num_bytes = sum(count * cost.bytes_per_request for cost, count in costs.items())
        return (
            self._compute_s(flops, self._efficiencies.scan_compute),
            self._transfer_s(num_bytes, self._efficiencies.kv_bandwidth),
        )

    def _num_all_reduces(self, model: Model) -> int:
        """After each attention part, each MLP and the embedding, which all are split."""
        return 2 * len(model.layers) + 1 if self._tensor_parallel > 1 else 0

    def _link_seconds(self, model: Model) -> tuple[float, float]:
        """All-reducing one token's hidden states, and gathering one row of logits.

        A ring moves 2 (n - 1) / n of the data over each link for an all-reduce, half of that for a gather.
        """
        part = (self._tensor_parallel - 1) / self._tensor_parallel
        bytes_per_s = self._gpu.interconnect_bytes_per_s * self._efficiencies.link_bandwidth
        hidden_bytes = self._num_all_reduces(model) * model.hidden_size * model.element_bytes
        return 2 * part * hidden_bytes / bytes_per_s, part * model.vocab_size * model.element_bytes / bytes_per_s

    def _rounds(self, layer: Layer) -> bool:
        """Whether activations are rounded before the layer's projections, to 8 bits or to 4."""
        stored = layer.shared_weights(self._element_bytes, self._tensor_parallel)
        weight_format = max(stored, key=lambda weights: weights.num_bytes).weight_format
        return weight_format is not None and self._gpu.flops_per_s(weight_format.compute) > self._gpu.bf16_flops_per_s

    def _fixed_seconds(self, model: Model) -> dict[str, float]:
        """What a step costs whatever it computes, by the figure of `Efficiencies`."""
        efficiencies = self._efficiencies
        return dict.fromkeys(PRICED, 0.0) | {
            "step_s": efficiencies.step_s,
            "layer_s": len(model.layers) * efficiencies.layer_s,
            "expert_layer_s": sum(1 for _ in model.routings(self._tensor_parallel)) * efficiencies.expert_layer_s,
            "rounding_layer_s": sum(self._rounds(layer) for layer in model.layers) * efficiencies.rounding_layer_s,
            "all_reduce_s": self._num_all_reduces(model) * efficiencies.all_reduce_s,
        }
