"""Gemma 4: sliding-window layers between full ones whose heads are larger; some models share KV, one has experts.

The figures are those of the text model. The smaller ones have an embedding for each layer, and their
last layers read the KV of earlier ones.
"""

from dataclasses import replace

from models_configs.attention import FullAttention, Heads, SharedKVAttention, SlidingWindowAttention
from models_configs.families.common import read_dense_mlp, read_experts, read_heads, shares_kv, slides
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _full_heads(config: HFConfig, sliding: Heads) -> Heads:
    """Heads of the layers with full attention; where keys serve as values there may be fewer of these."""
    head_size = config.integer("global_head_dim", default=512)
    keys_serve = config.flag("attention_k_eq_v", default=False)
    num_kv_heads = sliding.num_kv_heads
    if keys_serve and config.has("num_global_key_value_heads"):
        num_kv_heads = config.integer("num_global_key_value_heads")
    return replace(
        sliding,
        head_size=head_size,
        num_kv_heads=num_kv_heads,
        values_are_keys=keys_serve,
        num_norm_parameters=2 * head_size,
    )


def _attention(config: HFConfig, *, is_sliding: bool, is_shared: bool) -> AttentionPart:
    heads = read_heads(config, has_qk_norm=True)
    heads = heads if is_sliding else _full_heads(config, heads)
    if is_shared:  # no keys, no norm over them
        heads = replace(heads, has_kv_projections=False, num_norm_parameters=heads.head_size)
    like = SlidingWindowAttention(heads, config.integer("sliding_window")) if is_sliding else FullAttention(heads)
    return SharedKVAttention(like) if is_shared else like


def _mlps(config: HFConfig, *, is_shared: bool) -> tuple[MLPPart, ...]:
    """A dense MLP, in some models twice as wide in layers that share KV, and beside it perhaps experts."""
    dense = read_dense_mlp(config)
    if is_shared and config.flag("use_double_wide_mlp", default=False):
        dense = replace(dense, intermediate_size=2 * dense.intermediate_size)
    if not config.flag("enable_moe_block", default=False):
        return (dense,)
    # a scale of what the router reads, and one of each expert
    extras = config.integer("hidden_size") + config.integer("num_experts")
    return dense, read_experts(config, top_k="top_k_experts", num_router_extras=extras)


def _layer_extras(config: HFConfig) -> int:
    """Norms, and the gate and projection of the layer's own embedding, with a norm after it."""
    hidden_size, size = config.integer("hidden_size"), _embedding_size(config)
    # before and after each of the two parts; with experts one before them and one after each kind of MLP
    num_norms = 7 if config.flag("enable_moe_block", default=False) else 4
    return num_norms * hidden_size + ((2 * size + 1) * hidden_size if size else 0)


def _embedding_size(config: HFConfig) -> int:
    """Width of the embedding that each layer has of its own; 0 for none."""
    return config.integer("hidden_size_per_layer_input", default=256)


def _outside(config: HFConfig) -> int:
    """The layers' own embeddings, and a projection to them from the hidden size with a norm."""
    size = _embedding_size(config)
    if not size:
        return 0
    width = config.integer("num_hidden_layers") * size
    return (config.integer("vocab_size_per_layer_input") + config.integer("hidden_size")) * width + size


def _stack(config: HFConfig) -> Stack:
    sliding = slides(config, period=6)
    sliding[-1] = False  # whatever the configuration says, as in transformers (Gemma4TextConfig)
    extras = _layer_extras(config)

    def layer(*, is_sliding: bool, is_shared: bool) -> Layer:
        attention = _attention(config, is_sliding=is_sliding, is_shared=is_shared)
        return Layer(mixers=(attention,), mlps=_mlps(config, is_shared=is_shared), norm_parameters=extras)

    kinds = zip(sliding, shares_kv(config), strict=True)
    layers = (layer(is_sliding=is_sliding, is_shared=is_shared) for is_sliding, is_shared in kinds)
    return Stack(tuple(layers), other_parameters=_outside(config))


_MAXTEXT = "github AI-Hypercomputer/maxtext@e591f30cbbf2 checkpoint_conversion/utils/hf_model_configs.py"
_KVCACHE_BLOG = "github kvcache-ai/kvcache-blog@d455485bd1c5 (model data)"

_GEMMA_4 = {
    "model_type": "gemma4_text",
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_bias": False,
    "vocab_size": 262144,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}

_LARGE = {
    **_GEMMA_4,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "max_position_embeddings": 262144,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
}

_SMALL = {
    **_GEMMA_4,
    "attention_k_eq_v": False,
    "num_attention_heads": 8,
    "sliding_window": 512,
    "max_position_embeddings": 131072,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "enable_moe_block": False,
}

_FIVE_AND_ONE = ["sliding_attention"] * 5 + ["full_attention"]

FAMILY = Family(
    model_types=("gemma4", "gemma4_text"),
    stack=_stack,
    published=(
        Published(
            name="gemma-4-e2b",
            hf_id="google/gemma-4-E2B",
            same_shape=("google/gemma-4-E2B-it",),
            config={
                **_SMALL,
                "num_hidden_layers": 35,
                "hidden_size": 1536,
                "num_key_value_heads": 1,
                "intermediate_size": 6144,
                "use_double_wide_mlp": True,
                "num_kv_shared_layers": 20,
                "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
            },
            source=f"{_MAXTEXT} gemma4_e2b_dict; {_KVCACHE_BLOG}",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="gemma-4-e4b",
            hf_id="google/gemma-4-E4B",
            same_shape=("google/gemma-4-E4B-it",),
            config={
                **_SMALL,
                "num_hidden_layers": 42,
                "hidden_size": 2560,
                "num_key_value_heads": 2,
                "intermediate_size": 10240,
                "use_double_wide_mlp": False,
                "num_kv_shared_layers": 18,
                "layer_types": _FIVE_AND_ONE * 7,
            },
            source=f"{_MAXTEXT} gemma4_e4b_dict; {_KVCACHE_BLOG}",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="gemma-4-26b-a4b",
            hf_id="google/gemma-4-26B-A4B",
            same_shape=("google/gemma-4-26B-A4B-it",),
            config={
                **_LARGE,
                "num_hidden_layers": 30,
                "hidden_size": 2816,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "num_global_key_value_heads": 2,
                "intermediate_size": 2112,
                "enable_moe_block": True,
                "num_experts": 128,
                "top_k_experts": 8,
                "moe_intermediate_size": 704,
                "layer_types": _FIVE_AND_ONE * 5,
            },
            source=aiconfigurator("google/gemma-4-26B-A4B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="gemma-4-31b",
            hf_id="google/gemma-4-31B",
            same_shape=("google/gemma-4-31B-it",),
            config={
                **_LARGE,
                "num_hidden_layers": 60,
                "hidden_size": 5376,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "num_global_key_value_heads": 4,
                "intermediate_size": 21504,
                "enable_moe_block": False,
                "layer_types": _FIVE_AND_ONE * 10,
            },
            # of the quantized copy, whose architecture is the same; here unquantized, as google publishes it
            source=f"{aiconfigurator('nvidia/Gemma-4-31B-IT-NVFP4')}; {_MAXTEXT} gemma4_31b",
            confidence=Confidence.CONFIG,
        ),
    ),
)
