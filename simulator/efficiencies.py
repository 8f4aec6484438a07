"""What servers reach of their hardware's peaks, and what a step costs besides."""

from dataclasses import dataclass, replace
from math import inf

from simulator.hardware import Gpu

__all__ = ["COSTS", "PRICED", "SHARES", "Efficiencies", "efficiencies_of"]

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
COSTS = ("all_reduce_rank_s", "step_s", "layer_s", "request_s", "request_layer_s")
"""Seconds."""
PRICED = (*SHARES, *COSTS)
"""What a step's time can be dealt out to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """What a server reaches of its hardware's peaks, and what each step costs besides.

    Defaults, to be calibrated against measurements of one's own server. Kernel figures are those of vLLM
    0.24 on an H100, from the tables in PyPI aiconfigurator-core 0.12.0 (systems/data/h100_sxm). With them
    the time per output token under steady load lies about 8 % on average from 159 published measurements
    of vLLM with Llama-3.1-70B in FP8, and 13 % from 217 with gpt-oss-120b, on 1 to 8 H100, H200 and B200
    (systems/silicon_sample.csv, overloaded runs left out).
    """

    matmul_compute: float = 0.70
    """Of peak FLOP/s in projections and dense MLPs: the kernels alone reach 0.80 from 512 tokens on;
    norms, rotary positions and activations between them take the rest."""
    expert_compute: float = 0.40
    """The same for routed experts: the grouped kernels alone reach 0.41 to 0.57 with 8,192 tokens,
    depending on how evenly these choose."""
    prefill_attention_compute: float = 0.55
    """Of peak FLOP/s: 0.40 for 2,048 new tokens, 0.60 for 8,192 (128 elements a head)."""
    decode_attention_compute: float = 0.30
    """Of peak FLOP/s, for one query at a time. Assumed; seldom what limits."""
    scan_compute: float = 0.02
    """Of peak FLOP/s in a Mamba scan, which runs on vector and exponential units: those of an H100
    reach 0.07 of its matrix peak, and a third of that is assumed."""
    weight_bandwidth: float = 0.83
    """Of memory bandwidth while weights are read: 2,780 GB/s of 3,350 for 1 to 128 tokens."""
    expert_bandwidth: float = 0.65
    """The same for routed experts: 0.5 for 4 tokens, 0.7 for 128 (gpt-oss-120b)."""
    kv_bandwidth: float = 0.75
    """Of memory bandwidth while KV is read: 0.6 for a small batch, 0.9 for a large one."""
    link_bandwidth: float = 0.65
    """Of the one-way link rate in an all-reduce: 0.6 to 0.7 for 64 MB and more over 2 to 8 GPUs."""
    all_reduce_rank_s: float = 2e-6
    """Latency of one all-reduce, for each rank: NCCL takes 6, 10 and 16 microseconds over 2, 4 and 8."""
    step_s: float = 0.5e-3
    """Scheduling, input preparation and sampling that are not hidden behind the GPU: what the published
    measurements leave unexplained, together with the next."""
    layer_s: float = 25e-6
    """Launches, norms and the shortest attention kernel of one layer: 11 to 14 microseconds for the last
    alone."""
    request_layer_s: float = 0.2e-6
    """For each decoding request in each attention kernel: 0.44 ms for 2,048 requests of one token each."""
    request_s: float = 0.0
    """Host work for each request of a step that is not hidden behind the GPU: asynchronous scheduling hides it."""
    matmul_overlap: float = inf
    """How well arithmetic and reading overlap in matrix products, routed experts' too: they take the norm of this
    order of both. inf: the slower hides the other. 1: one follows the other. In between the way from one limit to
    the other bends: kernels of an RTX 4090 need 14 % longer for 64 tokens than for 1, and twice as long for 272 as
    for 64."""

    @classmethod
    def at_peak(cls) -> "Efficiencies":
        """A server that reaches every peak and pays for nothing else: no real one is faster.

        How many experts a step reads depends on how tokens choose: their weights cost nothing here.
        """
        return cls(
            matmul_compute=1, expert_compute=1, prefill_attention_compute=1, decode_attention_compute=1,
            scan_compute=1, weight_bandwidth=1, expert_bandwidth=inf, kv_bandwidth=1, link_bandwidth=1,
            all_reduce_rank_s=0, step_s=0, layer_s=0, request_layer_s=0,
        )  # fmt: skip


SYNC_STEP_S, SYNC_REQUEST_S = 1.6e-3, 30e-6
"""What a step and each of its requests take besides where a step is planned only after the one before it: from a tenth
of the published measurements of vLLM 0.12 with Qwen3-32B (docs/validation.md)."""


def efficiencies_of(gpu: Gpu, *, async_scheduling: bool) -> Efficiencies:
    """The defaults for a GPU."""
    efficiencies = Efficiencies()
    return efficiencies if async_scheduling else replace(efficiencies, step_s=SYNC_STEP_S, request_s=SYNC_REQUEST_S)
