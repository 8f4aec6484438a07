"""Efficiencies: one row for each generation of GPUs, from kernels that were measured."""

from typing import get_args

import pytest

from models_configs.quantization import FP8_BLOCK, INT4, MXFP4, NVFP4
from simulator.efficiencies import GENERATIONS, SHARES, Efficiencies, efficiencies_of
from simulator.hardware import GPUS, Generation, find_gpu

BETWEEN_PRODUCTS = 0.92
"""Of a dense layer's time, what its matrix products take."""


def test_every_generation_has_a_gpu():
    assert {gpu.generation for gpu in GPUS} == set(get_args(Generation))


def test_gpus_that_nobody_measured_have_the_defaults():
    unmeasured = {gpu.name for gpu in GPUS if efficiencies_of(gpu, async_scheduling=True) == Efficiencies()}
    assert unmeasured == {"rtx-4090", "mi300x", "mi325x", "mi355x", "tpu-v5e", "tpu-v6e", "gaudi-3"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_kernel_is_faster_than_the_peak(generation):
    row = GENERATIONS[generation]
    shares = [getattr(row, name) for name in SHARES]
    shares += [row.matmul_share(weights) for weights in (FP8_BLOCK, NVFP4)]
    shares += [row.expert_share(weights) for weights in (FP8_BLOCK, NVFP4, MXFP4, INT4)]
    assert all(0 < share < 1 for share in shares)


def test_synchronous_scheduling_shows_the_hosts_work():
    h100 = find_gpu("h100")
    hidden, shown = (efficiencies_of(h100, async_scheduling=hides) for hides in (True, False))
    assert hidden.step_s < shown.step_s
    assert hidden.request_s < shown.request_s
    assert hidden.matmul_compute == shown.matmul_compute


@pytest.mark.parametrize("gpu", ["a100-80gb", "l40s", "h100", "h200", "b200", "gb200", "b300", "gb300", "rtx-pro-6000"])
def test_matrix_products_are_as_the_measured_kernels(gpu):
    """By format; a generation has one figure for all of its GPUs, within a tenth of each."""
    pytest.importorskip("aiconfigurator_core")
    from benchmarks.efficiencies import gemm_rows

    formats = {"bfloat16": None, "fp8": FP8_BLOCK, "nvfp4": NVFP4}
    measured = {row["weights"]: float(row["share with 2,048 to 8,192 tokens"]) for row in gemm_rows(find_gpu(gpu))}
    row = efficiencies_of(find_gpu(gpu), async_scheduling=True)
    taken = {name: row.matmul_share(formats[name]) / BETWEEN_PRODUCTS for name in measured}
    assert taken == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("gpu", ["a100-80gb", "l40s", "h100", "h200", "b200", "gb200", "b300", "gb300", "rtx-pro-6000"])
def test_experts_are_as_the_fastest_measured_kernels(gpu):
    """By format, tokens choosing by a power law."""
    pytest.importorskip("aiconfigurator_core")
    from benchmarks.efficiencies import expert_rows

    formats = {"bfloat16": None, "fp8_block": FP8_BLOCK, "nvfp4": NVFP4, "int4_wo": INT4}
    measured: dict[str, float] = {}
    for found in expert_rows(find_gpu(gpu)):
        if found["weights"] in formats and found["choices"].startswith("power_law"):
            measured[found["weights"]] = max(float(found["share of peak"]), measured.get(found["weights"], 0))
    row = efficiencies_of(find_gpu(gpu), async_scheduling=True)
    assert {name: row.expert_share(formats[name]) for name in measured} == pytest.approx(measured, rel=0.15)
