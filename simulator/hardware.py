"""Accelerators as numbers: memory, bandwidth, dense peaks, link.

Peaks are dense (vendors also print twice as much, for sparse matrices). Memory is what one device
reports where a figure is known; otherwise the vendor's GB are taken as GiB, because HBM and GDDR
stacks come in powers of two: 80 GB are 80 x 2^30 bytes on every card whose figure is known. The
driver keeps a little for itself: a server prints 79.18 GiB for an H100.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from models_configs.quantization import Compute

__all__ = ["GPUS", "Generation", "Gpu", "UnknownGpuError", "find_gpu"]

_GIB = 2**30

Generation = Literal[
    "ampere",
    "ada",
    "ada-rtx",
    "hopper",
    "blackwell",
    "blackwell-ultra",
    "blackwell-rtx",
    "cdna3",
    "cdna4",
    "tpu-v5e",
    "tpu-v6e",
    "gaudi-3",
]
"""Of which the units are alike, and the kernels written for them."""


class UnknownGpuError(ValueError):
    """No accelerator has this name; the message is one line for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device."""

    name: str
    """Short and in lower case: how the command line knows it."""
    generation: Generation
    memory_bytes: int
    bandwidth_bytes_per_s: float
    """Of its memory."""
    bf16_flops_per_s: float
    """Dense peak."""
    fp8_flops_per_s: float | None = None
    """Dense peak; None where the device has no such units."""
    fp4_flops_per_s: float | None = None
    interconnect_bytes_per_s: float
    """To its peers, one way: NVLink or its like, else PCIe."""
    host_bytes_per_s: float | None = None
    """To its host's memory, one way, by name: PCIe x16 unless it says otherwise. None: not known."""
    source: str
    aliases: tuple[str, ...] = ()

    def flops_per_s(self, compute: Compute) -> float:
        """Dense peak for matrices multiplied so: that of 16 bits where the device has no such units."""
        peaks = {"fp8": self.fp8_flops_per_s, "fp4": self.fp4_flops_per_s}
        if compute == "mxfp8" and self.fp4_flops_per_s is not None:  # the units that scale FP8 blocks came with FP4
            return self.fp8_flops_per_s or self.bf16_flops_per_s
        return peaks.get(compute) or self.bf16_flops_per_s


# PCIe x16 one way, as the tables of aiconfigurator have it ("pcie_bw")
_PCIE_4 = 32e9
_PCIE_5 = 64e9


def _aiconfigurator(file: str) -> str:
    return f"PyPI aiconfigurator-core 0.12.0, systems/{file}.yaml (github ai-dynamo/aiconfigurator)"


GPUS = (
    Gpu(
        name="a100-40gb",
        generation="ampere",
        aliases=("a100-40gb-sxm4",),
        memory_bytes=40 * _GIB,
        bandwidth_bytes_per_s=1555e9,
        bf16_flops_per_s=312e12,
        interconnect_bytes_per_s=300e9,
        host_bytes_per_s=_PCIE_4,
        source="NVIDIA A100 datasheet (github astroC86/gpu-datasheet); link: yobitel.com/knowledge-base/nvidia-a100",
    ),
    Gpu(
        name="a100-80gb",
        generation="ampere",
        aliases=("a100", "a100-80gb-sxm4"),
        memory_bytes=85_899_345_920,
        bandwidth_bytes_per_s=2039e9,
        bf16_flops_per_s=312e12,
        interconnect_bytes_per_s=300e9,
        host_bytes_per_s=_PCIE_4,
        source=_aiconfigurator("a100_sxm"),
    ),
    Gpu(
        name="a100-80gb-pcie",
        generation="ampere",
        memory_bytes=85_899_345_920,
        bandwidth_bytes_per_s=1935e9,
        bf16_flops_per_s=312e12,
        interconnect_bytes_per_s=32e9,  # PCIe 4; a bridge between two cards is optional
        host_bytes_per_s=_PCIE_4,
        source=_aiconfigurator("a100_pcie"),
    ),
    Gpu(
        name="h100-80gb",
        generation="hopper",
        aliases=("h100", "h100-80gb-sxm5", "h100-sxm"),
        memory_bytes=85_899_345_920,
        bandwidth_bytes_per_s=3350e9,
        bf16_flops_per_s=989e12,
        fp8_flops_per_s=1979e12,
        interconnect_bytes_per_s=450e9,
        host_bytes_per_s=_PCIE_5,
        source=_aiconfigurator("h100_sxm") + "; NVIDIA H100 datasheet 2430615",
    ),
    Gpu(
        name="h100-80gb-pcie",
        generation="hopper",
        memory_bytes=85_899_345_920,
        bandwidth_bytes_per_s=2000e9,
        bf16_flops_per_s=756.5e12,
        fp8_flops_per_s=1513e12,
        interconnect_bytes_per_s=64e9,  # PCIe 5; a bridge between two cards is optional
        host_bytes_per_s=_PCIE_5,
        source=_aiconfigurator("h100_pcie"),
    ),
    Gpu(
        name="h100-nvl-94gb",
        generation="hopper",
        aliases=("h100-nvl",),
        memory_bytes=94 * _GIB,
        bandwidth_bytes_per_s=3900e9,
        bf16_flops_per_s=835.5e12,
        fp8_flops_per_s=1671e12,
        interconnect_bytes_per_s=300e9,  # a bridge between two cards
        host_bytes_per_s=_PCIE_5,
        source="NVIDIA H100 NVL datasheet (github inference-sim/training, h100-nvl.json), its sparse peaks halved",
    ),
    Gpu(
        name="h200",
        generation="hopper",
        aliases=("h200-141gb", "h200-141gb-sxm"),
        # 139.81 GiB in a vLLM 0.10.2 start-up log: here 141 GB are neither GB nor GiB
        memory_bytes=int(139.81 * _GIB),
        bandwidth_bytes_per_s=4800e9,
        bf16_flops_per_s=989e12,
        fp8_flops_per_s=1979e12,
        interconnect_bytes_per_s=450e9,
        host_bytes_per_s=_PCIE_5,
        source=_aiconfigurator("h200_sxm") + "; memory: a vLLM start-up log",
    ),
    Gpu(
        name="b200",
        generation="blackwell",
        aliases=("b200-sxm", "b200-180gb"),
        memory_bytes=193_273_528_320,
        bandwidth_bytes_per_s=7700e9,
        bf16_flops_per_s=2250e12,
        fp8_flops_per_s=4500e12,
        fp4_flops_per_s=9000e12,
        interconnect_bytes_per_s=900e9,
        host_bytes_per_s=_PCIE_5,
        source=_aiconfigurator("b200_sxm") + "; NVIDIA Blackwell datasheet 3384703",
    ),
    Gpu(
        name="b300",
        generation="blackwell-ultra",
        aliases=("b300-sxm", "b300-288gb"),
        memory_bytes=288_400_343_040,
        bandwidth_bytes_per_s=7750e9,
        bf16_flops_per_s=2250e12,
        fp8_flops_per_s=4500e12,
        fp4_flops_per_s=14000e12,
        interconnect_bytes_per_s=900e9,
        source=_aiconfigurator("b300_sxm") + "; NVIDIA Blackwell Ultra datasheet",
    ),
    Gpu(
        name="gb200",
        generation="blackwell",
        memory_bytes=198_674_743_296,
        bandwidth_bytes_per_s=8000e9,
        bf16_flops_per_s=2500e12,
        fp8_flops_per_s=5000e12,
        fp4_flops_per_s=10000e12,
        interconnect_bytes_per_s=900e9,
        host_bytes_per_s=225e9,  # NVLink-C2C: 450 GB/s each way between a Grace CPU and its two GPUs
        source=_aiconfigurator("gb200"),
    ),
    Gpu(
        name="gb300",
        generation="blackwell-ultra",
        memory_bytes=298_013_687_808,
        bandwidth_bytes_per_s=8000e9,
        bf16_flops_per_s=2500e12,
        fp8_flops_per_s=5000e12,
        fp4_flops_per_s=15000e12,
        interconnect_bytes_per_s=900e9,
        host_bytes_per_s=225e9,  # NVLink-C2C: 450 GB/s each way between a Grace CPU and its two GPUs
        source=_aiconfigurator("gb300"),
    ),
    Gpu(
        name="l4",
        generation="ada",
        aliases=("l4-24gb",),
        memory_bytes=25_769_803_776,
        bandwidth_bytes_per_s=300e9,
        bf16_flops_per_s=121e12,
        fp8_flops_per_s=242e12,
        interconnect_bytes_per_s=32e9,
        host_bytes_per_s=_PCIE_4,
        source=_aiconfigurator("l4"),
    ),
    Gpu(
        name="l40s",
        generation="ada",
        aliases=("l40s-48gb",),
        memory_bytes=48_305_799_168,
        bandwidth_bytes_per_s=864e9,
        bf16_flops_per_s=362.05e12,
        fp8_flops_per_s=733e12,
        interconnect_bytes_per_s=32e9,
        host_bytes_per_s=_PCIE_4,
        source=_aiconfigurator("l40s"),
    ),
    Gpu(
        name="a10g",
        generation="ampere",
        memory_bytes=24 * _GIB,
        bandwidth_bytes_per_s=600e9,
        bf16_flops_per_s=70e12,  # not confirmed by a datasheet; the A10 has 125
        interconnect_bytes_per_s=32e9,
        host_bytes_per_s=_PCIE_4,
        source="baseten.co, A10 vs A10G",
    ),
    Gpu(
        name="a10",
        generation="ampere",
        memory_bytes=24 * _GIB,
        bandwidth_bytes_per_s=600e9,
        bf16_flops_per_s=125e12,
        interconnect_bytes_per_s=32e9,
        host_bytes_per_s=_PCIE_4,
        source="github citsjtu2020/LLM-Prof hardware_spec.md; github astroC86/gpu-datasheet",
    ),
    Gpu(
        name="rtx-4090",
        generation="ada-rtx",
        aliases=("rtx4090", "4090", "rtx-4090-24gb"),
        memory_bytes=25_250_627_584,
        bandwidth_bytes_per_s=1008e9,
        bf16_flops_per_s=165.2e12,
        fp8_flops_per_s=330.3e12,  # accumulating in fp32
        interconnect_bytes_per_s=32e9,
        host_bytes_per_s=_PCIE_4,
        source="waredb.com, gigagpu.com; memory: LLMServingSim, profile of an RTX 4090",
    ),
    Gpu(
        name="rtx-pro-6000",
        generation="blackwell-rtx",
        aliases=("rtx-pro-6000-blackwell", "rtx-pro-6000-96gb"),
        memory_bytes=102_641_958_912,
        bandwidth_bytes_per_s=1792e9,
        bf16_flops_per_s=467.8e12,
        fp8_flops_per_s=935.6e12,
        fp4_flops_per_s=1871.2e12,
        interconnect_bytes_per_s=64e9,
        host_bytes_per_s=_PCIE_5,
        source=_aiconfigurator("rtx_pro_6000_server"),
    ),
    Gpu(
        name="mi300x",
        generation="cdna3",
        memory_bytes=192 * _GIB,
        bandwidth_bytes_per_s=5300e9,
        bf16_flops_per_s=1307.4e12,
        fp8_flops_per_s=2614.9e12,
        interconnect_bytes_per_s=448e9,
        host_bytes_per_s=_PCIE_5,
        source="github alpharomercoma/MI300X-vs-H200 METHODOLOGY; link: gpu.blog",
    ),
    Gpu(
        name="mi325x",
        generation="cdna3",
        memory_bytes=256 * _GIB,
        bandwidth_bytes_per_s=6000e9,
        bf16_flops_per_s=1307.4e12,
        fp8_flops_per_s=2614.9e12,  # taken from the MI300X, of the same architecture, as is the link
        interconnect_bytes_per_s=448e9,
        host_bytes_per_s=_PCIE_5,
        source="docs.vultr.com inference cookbook",
    ),
    Gpu(
        name="mi355x",
        generation="cdna4",
        memory_bytes=288 * _GIB,
        bandwidth_bytes_per_s=8000e9,
        bf16_flops_per_s=2500e12,  # half of fp8
        fp8_flops_per_s=5000e12,
        fp4_flops_per_s=10000e12,
        interconnect_bytes_per_s=537.5e9,  # not confirmed by a datasheet
        host_bytes_per_s=_PCIE_5,
        source="theregister.com 2025-06-12; peaks: AMD at ISSCC",
    ),
    Gpu(
        name="tpu-v5e",
        generation="tpu-v5e",
        memory_bytes=16 * _GIB,
        bandwidth_bytes_per_s=819e9,
        bf16_flops_per_s=197e12,
        interconnect_bytes_per_s=200e9,
        source="docs.cloud.google.com/tpu/docs/v5e",
    ),
    Gpu(
        name="tpu-v6e",
        generation="tpu-v6e",
        memory_bytes=32 * _GIB,
        bandwidth_bytes_per_s=1638e9,
        bf16_flops_per_s=918e12,
        interconnect_bytes_per_s=400e9,
        source="docs.cloud.google.com/tpu/docs/v6e",
    ),
    Gpu(
        name="gaudi-3",
        generation="gaudi-3",
        aliases=("gaudi3",),
        memory_bytes=128 * _GIB,
        bandwidth_bytes_per_s=3700e9,
        bf16_flops_per_s=1835e12,
        fp8_flops_per_s=1835e12,
        interconnect_bytes_per_s=600e9,
        source="Intel's figures at servethehome.com and yobitel.com",
    ),
)

_BY_NAME = {name: gpu for gpu in GPUS for name in (gpu.name, *gpu.aliases)}


def find_gpu(name: str) -> Gpu:
    """The accelerator of this name, in any case, spaces and underscores read as hyphens.

    Raises UnknownGpuError, which suggests the nearest name.
    """
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    if gpu := _BY_NAME.get(wanted):
        return gpu
    if nearest := get_close_matches(wanted, _BY_NAME, n=1):
        raise UnknownGpuError(f'unknown gpu "{name}"; did you mean "{nearest[0]}"?')
    raise UnknownGpuError(f'unknown gpu "{name}"; known: {", ".join(gpu.name for gpu in GPUS)}')
