"""What servers reach of their hardware's peaks, and what a step costs besides.

`python -m benchmarks.efficiencies` prints the figures of kernels from which `GENERATIONS` was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from models_configs.quantization import WeightFormat
from simulator.hardware import Generation, Gpu

__all__ = ["COSTS", "FORMATS", "GENERATIONS", "PRICED", "SHAPES", "SHARES", "Efficiencies", "efficiencies_of"]

SHARES = (
    "matmul_compute",
    "expert_compute",
    "prefill_attention_compute",
    "decode_attention_compute",
    "scan_compute",
    "weight_bandwidth",
    "expert_bandwidth",
    "kv_bandwidth",
    "link_bandwidth",
)
"""Parts of a peak: what they time takes the longer the smaller they are."""
COSTS = (
    "all_reduce_s",
    "step_s",
    "layer_s",
    "rounding_layer_s",
    "expert_layer_s",
    "request_s",
    "request_layer_s",
)
"""Seconds."""
PRICED = (*SHARES, *COSTS)
"""What a step's time can be dealt out to."""
FORMATS = (
    "fp8_matmul",
    "nvfp4_matmul",
    "fp8_expert",
    "fp8_block_expert",
    "mxfp4_expert",
    "nvfp4_expert",
    "int4_expert",
    "int4_expert_reading",
)
"""What kernels of narrow weights reach, as a part of what those of 16 bits do."""
SHAPES = (*FORMATS, "prefill_attention_pairs", "matmul_overlap")
"""What belongs to a kind of GPU, not to one server: no part of a time is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """What a server reaches of its hardware's peaks, and what each step costs besides.

    The defaults stand for GPUs whose kernels nobody has published: they lie in the middle of `GENERATIONS`. All of
    them are meant to be calibrated against measurements of one's own server.
    """

    matmul_compute: float = 0.70
    """Of peak FLOP/s in projections and dense MLPs with 16 bits. Norms, rotary positions and activations, which read
    and write all that passes between those, are in it: they take 8 % of a dense layer's time."""
    expert_compute: float = 0.31
    """The same for routed experts, without norms."""
    prefill_attention_compute: float = 0.57
    """Of peak FLOP/s in long prompts, with heads of 128 elements."""
    decode_attention_compute: float = 0.30
    """Of peak FLOP/s, for one query at a time. Assumed; seldom what limits."""
    scan_compute: float = 0.02
    """Of peak FLOP/s in a Mamba scan, which runs on vector and exponential units: those of an H100 reach 0.07 of its
    matrix peak, and a third of that is assumed."""
    weight_bandwidth: float = 0.80
    """Of memory bandwidth while weights are read."""
    expert_bandwidth: float = 0.80
    """The same for routed experts, of those that are expected to be hit when tokens choose evenly."""
    kv_bandwidth: float = 0.80
    """Of memory bandwidth while KV is read."""
    link_bandwidth: float = 0.57
    """Of the one-way link rate in an all-reduce."""
    all_reduce_s: float = 6e-6
    """Latency of one all-reduce."""
    step_s: float = 0.5e-3
    """Scheduling, input preparation and sampling that are not hidden behind the GPU: what published measurements leave
    unexplained."""
    layer_s: float = 35e-6
    """What a layer takes whatever it computes: beginnings of four matrix products and an attention kernel, and three
    small kernels between them."""
    rounding_layer_s: float = 16e-6
    """Rounding activations to 8 or 4 bits before a layer's four matrix products, where its weights are so narrow."""
    expert_layer_s: float = 25e-6
    """Routing, sorting tokens by expert, and the beginnings of the grouped kernels: what a layer of routed experts
    takes longer than a dense one."""
    request_layer_s: float = 0.03e-6
    """For each decoding request in each attention kernel."""
    request_s: float = 0.0
    """Host work for each request of a step that is not hidden behind the GPU: asynchronous scheduling hides it."""
    fp8_matmul: float = 0.75
    """Of `matmul_compute`, where weights are in FP8: each of the peak of its own units."""
    nvfp4_matmul: float = 0.65
    fp8_expert: float = 0.65
    """Of `expert_compute`, where a routed expert's weights are in FP8 with a scale for each row or matrix."""
    fp8_block_expert: float = 0.50
    """The same with a scale for each block."""
    mxfp4_expert: float = 0.75
    nvfp4_expert: float = 0.50
    int4_expert: float = 0.50
    int4_expert_reading: float = 1.0
    """Of `expert_bandwidth`, where they are in INT4."""
    prefill_attention_pairs: float = 400.0
    """Pairs of tokens that take as long as what a prompt's attention does for each new token besides."""
    matmul_overlap: float = 2.0
    """How well arithmetic and reading overlap in matrix products, routed experts' too: they take the norm of this
    order of both. inf: the slower hides the other. 1: one follows the other. In between the way from one limit to
    the other bends. With 2 kernels of all generations are met best, or nearly so: within 4 to 10 % of projections, and
    6 to 18 % of experts, where without any bend it is 5 to 12 and 7 to 19."""

    @classmethod
    def at_peak(cls) -> "Efficiencies":
        """A server that reaches every peak and pays for nothing else: no real one is faster.

        How many experts a step reads depends on how tokens choose: their weights cost nothing here.
        """
        return cls(
            **dict.fromkeys((*SHARES, *FORMATS), 1.0)
            | dict.fromkeys(COSTS, 0.0)
            | {"expert_bandwidth": inf, "prefill_attention_pairs": 0.0, "matmul_overlap": inf}
        )

    def matmul_share(self, weight_format: WeightFormat | None) -> float:
        """Of the peak of the units that multiply weights of this format."""
        parts = {"fp8": self.fp8_matmul, "fp8 in blocks": self.fp8_matmul, "nvfp4": self.nvfp4_matmul}
        return self.matmul_compute * (parts.get(weight_format.name, 1.0) if weight_format else 1.0)

    def expert_share(self, weight_format: WeightFormat | None) -> float:
        """The same for routed experts."""
        parts = {
            "fp8": self.fp8_expert,
            "fp8 in blocks": self.fp8_block_expert,
            "mxfp4": self.mxfp4_expert,
            "nvfp4": self.nvfp4_expert,
            "int4": self.int4_expert,
        }
        return self.expert_compute * (parts.get(weight_format.name, 1.0) if weight_format else 1.0)

    def expert_reading_share(self, weight_format: WeightFormat | None) -> float:
        """Of memory bandwidth while routed experts of this format are read."""
        is_int4 = weight_format is not None and weight_format.name == "int4"
        return self.expert_bandwidth * (self.int4_expert_reading if is_int4 else 1.0)


# All from tables of vLLM 0.24 in PyPI aiconfigurator-core 0.12.0 (systems/data/SYSTEM, the names behind the
# generations; of 0.14 for ampere), as `python -m benchmarks.efficiencies` prints them:
# - matmul_compute from gemm/gemm_perf, with 2,048 to 8,192 tokens, times 0.92 for what is between the products;
#   weight_bandwidth from its fit, between 16 and 8 bits.
# - expert_compute from moe/moe_perf, where tokens choose by a power law; expert_bandwidth between that and balanced.
# - attention/context_attention_perf and generation_attention_perf with heads of 128; comm/custom_allreduce_perf over 2
#   to 8 GPUs with NVLink, over 2 without.
# - layer_s is four starts of products, one of attention, and three times the 3 us that the package takes for a small
#   kernel; expert_layer_s the start of grouped kernels less that of one product (two are gone, a router came).
# What a row leaves out was not measured there, and is the default.
# fmt: off
_BLACKWELL = Efficiencies(
    matmul_compute=0.64, fp8_matmul=0.65, nvfp4_matmul=0.64, weight_bandwidth=0.80,
    expert_compute=0.34, fp8_expert=0.74, fp8_block_expert=0.36, mxfp4_expert=0.59, nvfp4_expert=0.44,
    int4_expert=0.22, expert_bandwidth=0.80, int4_expert_reading=0.53,
    prefill_attention_compute=0.58, prefill_attention_pairs=690, kv_bandwidth=0.92, request_layer_s=0.015e-6,
    all_reduce_s=8e-6, link_bandwidth=0.50, layer_s=35e-6, rounding_layer_s=16e-6, expert_layer_s=16e-6,
)
GENERATIONS: Mapping[Generation, Efficiencies] = {
    "ampere": Efficiencies(  # a100_sxm. Narrow weights are widened, which is assumed to cost nothing
        matmul_compute=0.81, weight_bandwidth=0.75, expert_compute=0.28, expert_bandwidth=0.85,
        prefill_attention_compute=0.57, prefill_attention_pairs=230, kv_bandwidth=0.76, request_layer_s=0.035e-6,
        all_reduce_s=6e-6, link_bandwidth=0.56, layer_s=55e-6, rounding_layer_s=0, expert_layer_s=29e-6,
        **dict.fromkeys(FORMATS, 1.0),
    ),
    "ada": Efficiencies(  # l40s; its all-reduces over 4 and 8 cards reach 0.12 and 0.07 of the link
        matmul_compute=0.56, fp8_matmul=0.79, weight_bandwidth=0.72,
        expert_compute=0.32, fp8_expert=0.65, fp8_block_expert=0.65, mxfp4_expert=0.97, int4_expert=1.15,
        expert_bandwidth=0.80,
        prefill_attention_compute=0.53, prefill_attention_pairs=280, kv_bandwidth=0.78, request_layer_s=0.02e-6,
        all_reduce_s=5e-6, link_bandwidth=0.60, layer_s=20e-6, rounding_layer_s=0, expert_layer_s=4e-6,
    ),
    "hopper": Efficiencies(  # h100_sxm, h200_sxm
        matmul_compute=0.73, fp8_matmul=0.75, weight_bandwidth=0.84,
        expert_compute=0.34, fp8_expert=0.50, fp8_block_expert=0.50, mxfp4_expert=0.91, int4_expert=0.47,
        expert_bandwidth=0.80, int4_expert_reading=0.80,
        prefill_attention_compute=0.68, prefill_attention_pairs=570, kv_bandwidth=0.85, request_layer_s=0.04e-6,
        all_reduce_s=5e-6, link_bandwidth=0.63, layer_s=35e-6, rounding_layer_s=16e-6, expert_layer_s=30e-6,
    ),
    "blackwell": _BLACKWELL,  # b200_sxm, gb200
    "blackwell-ultra": replace(  # b300_sxm, gb300: its FP4 peak is half as much again, kernels are as fast as before
        _BLACKWELL, matmul_compute=0.71, fp8_matmul=0.62, nvfp4_matmul=0.38, nvfp4_expert=0.29,
        prefill_attention_compute=0.75, prefill_attention_pairs=810,
    ),
    "blackwell-rtx": Efficiencies(  # rtx_pro_6000_server; its all-reduces over 4 and 8 cards take 13 and 27 us
        matmul_compute=0.78, fp8_matmul=0.91, nvfp4_matmul=0.73, weight_bandwidth=0.80,
        expert_compute=0.31, fp8_expert=0.71, fp8_block_expert=0.71, mxfp4_expert=0.55, nvfp4_expert=0.61,
        int4_expert=1.35, expert_bandwidth=0.80,
        prefill_attention_compute=0.65, prefill_attention_pairs=320, kv_bandwidth=0.82, request_layer_s=0.02e-6,
        all_reduce_s=4e-6, link_bandwidth=0.59, layer_s=36e-6, rounding_layer_s=8e-6, expert_layer_s=13e-6,
    ),
}
# fmt: on

SYNC_STEP_S, SYNC_REQUEST_S = 1.6e-3, 30e-6
"""What a step and each of its requests take besides where a step is planned only after the one before it: from a tenth
of the published measurements of vLLM 0.12 with Qwen3-32B (docs/validation.md)."""


def efficiencies_of(gpu: Gpu, *, async_scheduling: bool) -> Efficiencies:
    """Those of the GPU's generation; the defaults where there are no tables of it."""
    efficiencies = GENERATIONS.get(gpu.generation, Efficiencies())
    return efficiencies if async_scheduling else replace(efficiencies, step_s=SYNC_STEP_S, request_s=SYNC_REQUEST_S)
