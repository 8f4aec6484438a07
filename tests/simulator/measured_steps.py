"""Steps of a made-up server, whose efficiencies are known, for what is to find them again."""

from functools import cache, partial

import numpy as np

from models_configs import find_model
from simulator.batch import Batch
from simulator.calibration import RooflineOf
from simulator.efficiencies import Efficiencies
from simulator.hardware import find_gpu
from simulator.roofline import Roofline

__all__ = ["ACHIEVED", "decode", "mixed", "prefill", "roofline_of", "steps"]

ACHIEVED = Efficiencies(
    matmul_compute=0.61,
    prefill_attention_compute=0.41,
    weight_bandwidth=0.74,
    kv_bandwidth=0.88,
    link_bandwidth=0.5,
    step_s=2.1e-3,
    request_layer_s=0.9e-6,
)
"""What the made-up server reaches; the other figures are as they come."""


@cache
def roofline_of(name: str = "llama-3.1-8b", gpu: str = "h100-80gb", tensor_parallel: int = 1) -> RooflineOf:
    return partial(Roofline, find_model(name), find_gpu(gpu), tensor_parallel, "auto")


def decode(num_requests: int, context: int) -> Batch:
    return Batch((), num_requests, num_requests * context)


def prefill(*chunks: tuple[int, int]) -> Batch:
    return Batch(chunks, 0, 0)


def mixed(num_new: int, num_requests: int, context: int) -> Batch:
    return Batch(((num_new, 0),), num_requests, num_requests * context)


def steps(num_steps: int = 300, seed: int = 1) -> list[Batch]:
    """What a busy server runs, and an idle one."""
    draw = np.random.default_rng(seed)
    kinds = [
        lambda: decode(int(draw.integers(1, 300)), int(draw.integers(10, 8000))),
        lambda: prefill((int(draw.integers(16, 8192)), int(draw.integers(0, 16_000)))),
        lambda: mixed(int(draw.integers(16, 4096)), int(draw.integers(1, 200)), int(draw.integers(10, 4000))),
    ]
    return [kinds[int(draw.integers(3))]() for _ in range(num_steps)]
