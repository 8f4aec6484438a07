"""What each model keeps, weighs and computes.

Read `model.Model` first (the description that everybody uses), then `attention`, `mamba` and `mlp` (what a
layer is made of), then a file of `families` (published figures and the rule that turns them into layers).
`catalogue.find_model` looks a model up by name.
"""

from models_configs.catalogue import UnknownModelError, find_model, list_models
from models_configs.hf_config import ConfigFieldError
from models_configs.model import Layer, Model
from models_configs.parts import AttentionPart, KVCacheOptions, MixingCost, MLPPart, Routing
from models_configs.quantization_methods import QuantizationError
from models_configs.reach import Chunk, Everything, Reach, Window

__all__ = [
    "AttentionPart",
    "Chunk",
    "ConfigFieldError",
    "Everything",
    "KVCacheOptions",
    "Layer",
    "MLPPart",
    "MixingCost",
    "Model",
    "QuantizationError",
    "Reach",
    "Routing",
    "UnknownModelError",
    "Window",
    "find_model",
    "list_models",
]
