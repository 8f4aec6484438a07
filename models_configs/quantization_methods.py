"""A server's `--quantization`: what each of its values says about how a checkpoint is stored.

Two things a value can mean. `fp8` and `fp8_per_block` quantize any 16-bit checkpoint while it is loaded. The others
need one that is stored so already, and name it: here the checkpoint of the same shape that a tool with its usual
settings would write.
"""

from collections.abc import Mapping

__all__ = ["METHODS", "QuantizationError", "is_method", "method_of", "section_of"]

_ALL_BUT_EXPERTS = r"re:(?!.*(\.experts\.|block_sparse_moe\.input_linear))"

_SECTIONS: dict[str, Mapping[str, object]] = {
    "fp8": {"quant_method": "fp8"},
    "fp8_per_block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "modelopt_fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": [_ALL_BUT_EXPERTS]},
    "awq": {"quant_method": "awq", "bits": 4},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "auto-round": {"quant_method": "auto-round", "bits": 4},
}
"""What stands in a `config.json`: matrices of attention, MLPs and experts, with mxfp4 of experts only."""

METHODS = (*_SECTIONS, "compressed-tensors")
"""The last says not in which format: it stands for none, and only agrees with a checkpoint that is stored so."""


class QuantizationError(ValueError):
    """A model cannot be quantized by this method; the message is one line for a person, without the flag."""


def section_of(method: str) -> Mapping[str, object]:
    """The `quantization_config` that a method stands for. Raises QuantizationError where it stands for none."""
    if section := _SECTIONS.get(method):
        return section
    if method in METHODS:
        raise QuantizationError(f"{method} says not in which format; it goes with a config.json that does")
    raise QuantizationError(f"must be one of {', '.join(METHODS)}, got {method!r}")


def method_of(quantization: Mapping[str, object]) -> str:
    """How a server calls the method of a published `quantization_config`."""
    method, algorithm = (str(quantization.get(key, "")).lower() for key in ("quant_method", "quant_algo"))
    if method in {"", "modelopt"}:
        return "modelopt_fp4" if "nvfp4" in algorithm else "modelopt"
    return method


def is_method(quantization: Mapping[str, object], method: str) -> bool:
    """Whether a published `quantization_config` is of this method, or of a variant of it, such as awq_marlin of awq."""
    published = method_of(quantization)
    return published == method or published.startswith(f"{method}_")
