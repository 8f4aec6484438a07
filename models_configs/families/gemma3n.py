"""Gemma 3n: four sliding-window layers, then one of full attention; the last ones read the KV of earlier ones.

The figures are those of the text model. Beside its layers it has an embedding for each of them, and
layers keep several streams (AltUp) with a low-rank path beside attention (LAuReL).
"""

from dataclasses import replace

from models_configs.attention import FullAttention, Heads, SharedKVAttention, SlidingWindowAttention
from models_configs.families.common import (
    MLP_MODULE,
    integer_of_each_layer,
    read_heads,
    shares_kv,
    slides,
    stored_format,
)
from models_configs.hf_config import HFConfig
from models_configs.mlp import DenseMLP
from models_configs.model import Layer
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _attention(config: HFConfig, heads: Heads, *, is_sliding: bool, is_shared: bool) -> AttentionPart:
    if is_shared:  # no keys, no norm over them
        heads = replace(heads, has_kv_projections=False, num_norm_parameters=heads.head_size)
    window = config.integer("sliding_window")
    like = SlidingWindowAttention(heads, window) if is_sliding else FullAttention(heads)
    return SharedKVAttention(like) if is_shared else like


def _layer_extras(config: HFConfig) -> int:
    """Norms, AltUp, LAuReL, and the gate and projection of the layer's own embedding."""
    hidden_size, streams = config.integer("hidden_size"), config.integer("altup_num_inputs")
    norms = 6 * hidden_size  # around both parts, after LAuReL and after the layer's own embedding
    altup = streams**3 + streams**2 + streams * hidden_size + 2 * hidden_size
    laurel = 2 * config.integer("laurel_rank") * hidden_size
    return norms + altup + laurel + 2 * config.integer("hidden_size_per_layer_input") * hidden_size


def _outside(config: HFConfig) -> int:
    """The embeddings of the layers, the projection to as many from the hidden size, those between streams."""
    hidden_size, size = config.integer("hidden_size"), config.integer("hidden_size_per_layer_input")
    width = config.integer("num_hidden_layers") * size
    embeddings = config.integer("vocab_size_per_layer_input") * width + width * hidden_size + size
    return embeddings + 2 * (config.integer("altup_num_inputs") - 1) * hidden_size**2


def _stack(config: HFConfig) -> Stack:
    heads, extras = read_heads(config, has_qk_norm=True), _layer_extras(config)
    hidden_size, mlp_format = config.integer("hidden_size"), stored_format(config, MLP_MODULE)

    def layer(width: int, *, is_sliding: bool, is_shared: bool) -> Layer:
        attention = _attention(config, heads, is_sliding=is_sliding, is_shared=is_shared)
        mlp = DenseMLP(hidden_size=hidden_size, intermediate_size=width, weight_format=mlp_format)
        return Layer(mixers=(attention,), mlps=(mlp,), norm_parameters=extras)

    widths = integer_of_each_layer(config, "intermediate_size")
    kinds = zip(widths, slides(config, period=5), shares_kv(config), strict=True)
    layers = (layer(width, is_sliding=sliding, is_shared=shared) for width, sliding, shared in kinds)
    return Stack(tuple(layers), other_parameters=_outside(config))


_DEEPMIND = "github google-deepmind/gemma gemma/gm/nn/gemma3n/_gemma3n.py"

_GEMMA_3N = {
    "model_type": "gemma3n_text",
    "hidden_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "torch_dtype": "bfloat16",
}

_PATTERN = ["sliding_attention"] * 4 + ["full_attention"]

FAMILY = Family(
    model_types=("gemma3n", "gemma3n_text"),
    stack=_stack,
    published=(
        Published(
            name="gemma-3n-e2b",
            hf_id="google/gemma-3n-E2B",
            same_shape=("google/gemma-3n-E2B-it",),
            config={
                **_GEMMA_3N,
                "num_hidden_layers": 30,
                "layer_types": _PATTERN * 6,
                "num_kv_shared_layers": 10,
                "intermediate_size": [8192] * 30,
            },
            source=f"{_DEEPMIND}; all else as in transformers 5.24 Gemma3nTextConfig",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="gemma-3n-e4b",
            hf_id="google/gemma-3n-E4B",
            same_shape=("google/gemma-3n-E4B-it",),
            config={
                **_GEMMA_3N,
                "num_hidden_layers": 35,
                "layer_types": _PATTERN * 7,
                "num_kv_shared_layers": 15,
                "intermediate_size": [16384] * 35,
            },
            source=f"transformers 5.24 Gemma3nTextConfig (its defaults have this shape); {_DEEPMIND}",
            confidence=Confidence.CLASS_DEFAULT,
        ),
    ),
)
