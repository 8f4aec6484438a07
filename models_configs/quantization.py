"""In what format a checkpoint stores its weights: formats, and how a `config.json` names them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from kvcache.specs import cdiv

__all__ = [
    "FP8_BLOCK",
    "FP8_CHANNEL",
    "INT4",
    "INT8",
    "MXFP4",
    "NVFP4",
    "Compute",
    "StoredWeights",
    "WeightFormat",
    "Weights",
    "read_format",
]

Compute = Literal["bf16", "fp8", "mxfp8", "fp4"]
"""With which units of a GPU matrices are multiplied, where it has them; else they are widened to 16 bits first.

"mxfp8": activations in 8 bits with a scale for each 32 elements, at the rate of FP8. GPUs that have no FP4 units
have FP8 ones without such scales, and multiply in 16 bits.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Quantized weights: so many bits per element, and a scale for each group of elements."""

    name: str
    element_bits: int
    scale_bits: int
    scale_group: int
    """Elements that share a scale."""
    compute: Compute = "bf16"
    """How a server multiplies such matrices with activations, which it quantizes for that."""
    hidden_multiple: int = 1
    """To which a server's kernels round the hidden size up when they load the weights."""
    intermediate_multiple: int = 1
    """To which they round the width of an expert up."""

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements`, scales included."""
        return cdiv(num_elements * (self.element_bits * self.scale_group + self.scale_bits), 8 * self.scale_group)


# OCP Microscaling formats 1.0: 4 bits, and an 8-bit scale for each 32 elements. The multiples are those
# of the Marlin and TensorRT-LLM kernels (vLLM 0.32, fused_moe/oracle/mxfp4.py). With them gpt-oss-20b
# takes 13.67 GiB and gpt-oss-120b 65.9; servers have printed 13.72 (A100), 13.47 (H100) and 65.97, 64.38.
MXFP4 = WeightFormat(
    name="mxfp4",
    element_bits=4,
    scale_bits=8,
    scale_group=32,
    compute="mxfp8",
    hidden_multiple=256,
    intermediate_multiple=128,
)
NVFP4 = WeightFormat(name="nvfp4", element_bits=4, scale_bits=8, scale_group=16, compute="fp4")
FP8_BLOCK = WeightFormat(name="fp8 in blocks", element_bits=8, scale_bits=32, scale_group=128 * 128, compute="fp8")
# One scale for a whole row of a matrix, or for the matrix: lost in the rounding of a row of thousands.
FP8_CHANNEL = WeightFormat(name="fp8", element_bits=8, scale_bits=32, scale_group=4096, compute="fp8")
INT8 = WeightFormat(name="int8", element_bits=8, scale_bits=32, scale_group=4096)
# A 16-bit scale and a 4-bit zero point for each 128 elements, the usual group of GPTQ, AWQ and AutoRound.
INT4 = WeightFormat(name="int4", element_bits=4, scale_bits=20, scale_group=128)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one part on one rank: matrices, which a checkpoint may quantize, and all else."""

    matrices: int
    others: int = 0
    """Biases, norms, convolutions and such: never quantized."""

    @property
    def total(self) -> int:
        """How many."""
        return self.matrices + self.others

    def num_bytes(self, element_bytes: int, weight_format: WeightFormat | None) -> int:
        """Bytes as published, where unquantized ones take `element_bytes` each."""
        if weight_format is None:
            return self.total * element_bytes
        return weight_format.num_bytes(self.matrices) + self.others * element_bytes

    def stored(self, element_bytes: int, weight_format: WeightFormat | None) -> tuple["StoredWeights", ...]:
        """The same by format: `num_bytes` in all."""
        if weight_format is None:
            return (StoredWeights(None, self.total, self.total * element_bytes),)
        return (
            StoredWeights(weight_format, self.matrices, weight_format.num_bytes(self.matrices)),
            StoredWeights(None, self.others, self.others * element_bytes),
        )


class StoredWeights(NamedTuple):
    """Weights that are stored alike."""

    weight_format: WeightFormat | None
    """None for unquantized."""
    num_parameters: int
    num_bytes: int
    """Scales included."""

    @staticmethod
    def by_format(weights: Iterable["StoredWeights"]) -> tuple["StoredWeights", ...]:
        """One entry a format, in order of first appearance; none for a format without weights."""
        sums: dict[WeightFormat | None, tuple[int, int]] = {}
        for weight_format, num_parameters, num_bytes in weights:
            so_far = sums.get(weight_format, (0, 0))
            sums[weight_format] = (so_far[0] + num_parameters, so_far[1] + num_bytes)
        return tuple(StoredWeights(kind, *both) for kind, both in sums.items() if both[0])


def read_format(quantization: Mapping[str, object], module: str) -> WeightFormat | None:
    """The format of one module's matrices, as a `quantization_config` has it; None: not quantized.

    `module` is a path as in the checkpoint, for instance "model.layers.1.self_attn.q_proj". Raises
    ValueError for a method that is not known.
    """
    if not quantization or any(_names(pattern, module) for pattern in _exempt(quantization)):
        return None
    return _format(quantization)


def _exempt(quantization: Mapping[str, object]) -> Sequence[str]:
    """Patterns of modules that stay as they are, under the names that the tools give them."""
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "modules_to_not_quantize")
    values = [quantization.get(key) for key in keys]
    return [str(pattern) for value in values if isinstance(value, list | tuple) for pattern in value]


def _names(pattern: str, module: str) -> bool:
    """Whether a pattern (a path or its end, `*` for anything, `re:` before a regular expression) means the module."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, pattern + ".*")
    return f".{pattern}." in f".{module}."


def _format(quantization: Mapping[str, object]) -> WeightFormat:
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(quantization.get("quant_algo", "")).lower()
    if method == "fp8" or "fp8" in algorithm:
        return FP8_BLOCK if quantization.get("weight_block_size") else FP8_CHANNEL
    if method == "mxfp4":
        return MXFP4
    if "nvfp4" in method + algorithm:
        return NVFP4
    if method in {"gptq", "awq", "auto-round", "auto_round", "autoround", "gptq_marlin", "awq_marlin"}:
        return _integer_format(int(str(quantization.get("bits", 4))))
    if method in {"compressed-tensors", "modelopt"}:
        return _compressed_format(quantization)
    raise ValueError(f"unknown quant_method {method!r}")


def _integer_format(bits: int) -> WeightFormat:
    if bits not in (4, 8):
        raise ValueError(f"integer weights of {bits} bits are not known, only of 4 and 8")
    return INT4 if bits == 4 else INT8


def _compressed_format(quantization: Mapping[str, object]) -> WeightFormat:
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ValueError("config_groups without weights")
    bits, kind = weights.get("num_bits", 4), weights.get("type", "int")
    if kind == "float":
        if bits == 4:
            return MXFP4 if weights.get("group_size") == 32 else NVFP4
        return FP8_BLOCK if weights.get("strategy") == "block" else FP8_CHANNEL
    if bits == 4 and isinstance(size := weights.get("group_size"), int) and size > 0:
        return replace(INT4, scale_group=size, scale_bits=16 if weights.get("symmetric") else 20)
    return _integer_format(int(bits))
