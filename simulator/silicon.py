"""Step times from measured kernels: the tables of NVIDIA's aiconfigurator-core (Apache-2.0), put together step by step.

Only this module knows that package. It has tables for some GPUs, and knows of which kernels some models consist; for
another model those of the nearest by shape are taken, each kind of kernel times the ratio of rooflines.
"""

import json
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

import pandas as pd
from aiconfigurator_core import AicEngine, ops_json_from_ops
from aiconfigurator_core.sdk.common import DefaultHFModels
from aiconfigurator_core.sdk.config_builders import build_model_config
from aiconfigurator_core.sdk.engine import compile_engine
from aiconfigurator_core.sdk.models import get_model

from models_configs import Model
from models_configs.quantization import WeightFormat
from simulator.hardware import Gpu
from simulator.kernel_tables import Curve, Kernels, Surface

__all__ = ["KNOWN_MODELS", "SYSTEMS", "NoKernelsError", "has_tables", "measured_kernels", "measured_table"]

BACKEND = "vllm"
VERSION = "current"
"""The newest tables of each GPU."""
KNOWN_MODELS = frozenset(DefaultHFModels)
"""Hugging Face repositories of which the package knows the kernels."""

SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100-80gb": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Our GPUs of which the package has tables for vLLM, under its names."""

EXPERT_FORMATS = {None: "bfloat16", "fp8": "fp8", "fp8 in blocks": "fp8_block", "nvfp4": "nvfp4", "int4": "int4_wo"}
"""Under its names. Another one is left to the package, which reads it in its copy of the model's configuration."""
FORMATS = EXPERT_FORMATS | {"fp8 in blocks": "fp8"}
"""The same for all other matrices. Its times of small ones that are scaled by the block are several times those that
servers need (180 microseconds for 9 MB on a B200), so they are taken as if they were scaled by the row."""

logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
"""It warns of every table that it fills in from another framework's, whether or not that is used."""

SHORT, LONG = 64, 4096
"""Contexts that tell an attention kernel from one whose time does not depend on them."""
MS = 1e-3


class NoKernelsError(ValueError):
    """The tables lack something; the message goes on after "those of"."""


def has_tables(gpu: Gpu) -> bool:
    """Whether kernels of vLLM were measured on this GPU."""
    return gpu.name in SYSTEMS


@lru_cache(maxsize=16)
def measured_kernels(
    model: Model, known_as: str, gpu: Gpu, tensor_parallel: int, kv_cache_dtype: str, *, expert_parallel: bool
) -> Kernels:
    """The kernels of a model, by the name `known_as` under which the package knows it (one of `KNOWN_MODELS`).

    There must be tables of this GPU. Servers that are alike share what has been looked up. Raises NoKernelsError
    where they lack a kernel.
    """
    try:
        layout = _layout(model, tensor_parallel, kv_cache_dtype, expert_parallel=expert_parallel)
        kernels = _kernels(model, known_as, SYSTEMS[gpu.name], layout)
        kernels.probe(SHORT, LONG)
    except Exception as error:  # the package raises all kinds
        reason = str(error).splitlines()[0]
        raise NoKernelsError(f"{known_as} on {gpu.name} are incomplete ({reason})") from None
    return kernels


def measured_table(gpu: Gpu, folder: str, name: str) -> tuple[str, pd.DataFrame]:
    """A table as the package ships it, of the newest vLLM that was measured: where it is in there, and its rows.

    For instance `measured_table(gpu, "gemm", "gemm")`. Raises NoKernelsError where there is none.
    """
    system = SYSTEMS.get(gpu.name, gpu.name)
    versions = files("aiconfigurator_core").joinpath("systems", "data", system, folder, BACKEND)
    file = f"{name}_perf.parquet"
    found = [version for version in versions.iterdir() if version.joinpath(file).is_file()] if versions.is_dir() else []
    if not found:
        raise NoKernelsError(f"there is no table {folder}/{name} of {gpu.name}")
    newest = max(found, key=lambda version: [int(number) for number in version.name.split(".") if number.isdecimal()])
    with newest.joinpath(file).open("rb") as stream:
        return f"systems/data/{system}/{folder}/{BACKEND}/{newest.name}/{file}", pd.read_parquet(stream)


def _layout(model: Model, tensor_parallel: int, kv_cache_dtype: str, *, expert_parallel: bool) -> dict[str, Any]:
    """How weights are split and stored, in the package's words."""
    routings = list(model.routings(tensor_parallel))
    stored = max(model.shared_weights(tensor_parallel), key=lambda weights: weights.num_bytes)
    return {
        "tp_size": tensor_parallel,
        "pp_size": 1,
        "attention_dp_size": 1,
        "moe_tp_size": tensor_parallel if routings and not expert_parallel else 1,
        "moe_ep_size": tensor_parallel if routings and expert_parallel else 1,
        "gemm_quant_mode": FORMATS.get(_name(stored.weight_format)),
        "moe_quant_mode": EXPERT_FORMATS.get(_name(routings[-1].weight_format)) if routings else None,
        "kvcache_quant_mode": "fp8" if kv_cache_dtype.startswith("fp8") else "bfloat16",
    }


def _name(weight_format: WeightFormat | None) -> str | None:
    return None if weight_format is None else weight_format.name


def _kernels(model: Model, known_as: str, system: str, layout: dict[str, Any]) -> Kernels:
    engine = AicEngine.from_spec(compile_engine(known_as, system, BACKEND, VERSION, **layout))
    described = get_model(known_as, build_model_config(**layout), BACKEND)
    decodes = _Phase(engine.evaluate_generation_ops, _listed(described.generation_ops), (SHORT,), (LONG,))
    prompts = _Phase(engine.evaluate_context_ops, _listed(described.context_ops), (LONG, 0), (LONG, LONG))
    return Kernels(
        decode=Curve(lambda num_requests: decodes.seconds(decodes.others, num_requests, SHORT)),
        prefill=Curve(lambda num_tokens: prompts.seconds(prompts.others, 1, num_tokens, 0)),
        logits=Curve(lambda num_requests: decodes.seconds(decodes.logits, num_requests, SHORT)),
        prefill_attention=Surface(lambda new, before: prompts.seconds(prompts.attention, 1, new, before)),
        decode_attention=tuple(
            (reach, Surface(partial(decodes.seconds, numbers)))
            for reach, numbers in decodes.attention_by_reach(model).items()
        ),
    )


def _listed(operations: Any) -> list[dict[str, Any]]:
    """Each kernel's fields, its kind left out."""
    return [fields for operation in json.loads(ops_json_from_ops(operations)) for fields in operation.values()]


class _Phase:
    """The kernels of a step of prompts, or of one of decodes, by their numbers in the package's lists.

    Attention is what takes longer after a `long` context than after a `short` one.
    """

    def __init__(
        self,
        evaluate: Callable[..., list[tuple[str, float, float, str]]],
        kernels: list[dict[str, Any]],
        short: tuple[int, ...],
        long: tuple[int, ...],
    ) -> None:
        self._evaluate = evaluate
        self._kernels = kernels
        numbers = range(len(kernels))
        self.attention = [
            number for number in numbers if self.seconds([number], 1, *short) < self.seconds([number], 1, *long)
        ]
        self.logits = [number for number in numbers if "logits" in kernels[number]["name"]]
        self.others = [number for number in numbers if number not in {*self.attention, *self.logits}]

    def seconds(self, numbers: list[int], num_requests: int, *sizes: int) -> float:
        """Of these kernels together, for so many requests; nothing is like one."""
        return MS * sum(
            row[1] for row in self._evaluate(numbers, max(num_requests, 1), *(max(sizes[0], 1), *sizes[1:]))
        )

    def attention_by_reach(self, model: Model) -> dict[int | None, list[int]]:
        """The kernels of attention by the position of their window among the model's; None: without one."""
        positions: dict[Any, int] = {
            reach.key[1]: position for position, reach in enumerate(model.reaches) if reach.key
        }
        by_reach: dict[int | None, list[int]] = {}
        for number in self.attention:
            by_reach.setdefault(positions.get(self._kernels[number].get("window_size")), []).append(number)
        return by_reach
