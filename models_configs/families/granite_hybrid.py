"""Granite 4.0 H: one attention layer in ten, Mamba-2 in the others; experts beside a shared MLP, or that MLP alone."""

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads
from models_configs.families.mamba_fields import read_mamba2
from models_configs.hf_config import HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]

_SHARED_MODULE = "model.layers.1.shared_mlp.input_linear"
_EXPERT_MODULE = "model.layers.1.block_sparse_moe.input_linear"


def _mlp(config: HFConfig) -> MLPPart:
    num_experts = config.integer("num_local_experts", default=0)
    if num_experts == 0:
        return read_dense_mlp(config, "shared_intermediate_size", module=_SHARED_MODULE)
    return MixtureOfExperts(
        hidden_size=config.integer("hidden_size"),
        expert_size=config.integer("intermediate_size"),
        num_experts=num_experts,
        top_k=config.integer("num_experts_per_tok"),
        shared_expert_size=config.integer("shared_intermediate_size"),
        expert_format=config.weight_format(_EXPERT_MODULE),
        shared_format=config.weight_format(_SHARED_MODULE),
    )


def _stack(config: HFConfig) -> Stack:
    attention, mamba, mlp = FullAttention(read_heads(config)), read_mamba2(config), _mlp(config)
    mixers: dict[str, AttentionPart] = {
        "attention": attention,
        "mamba": mamba,
        # the names that transformers 5 writes
        "full_attention": attention,
        "linear_attention": mamba,
    }
    return Stack(tuple(layer_of(config, mixer, mlp) for mixer in config.layer_types(mixers)))


_GRANITE_4_H = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 40,
    "layer_types": [*["mamba"] * 5, *["attention", *["mamba"] * 9] * 3, "attention", *["mamba"] * 4],
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "vocab_size": 100352,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

_NUM_LAYERS_SOURCE = "36 Mamba and 4 attention layers as a test suite on GitHub quotes them"

FAMILY = Family(
    model_types=("granitemoehybrid",),
    stack=_stack,
    published=(
        Published(
            name="granite-4.0-h-small",
            hf_id="ibm-granite/granite-4.0-h-small",
            same_shape=("ibm-granite/granite-4.0-h-small-base",),
            config={
                **_GRANITE_4_H,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 768,
                "shared_intermediate_size": 1536,
                "num_local_experts": 72,
                "num_experts_per_tok": 10,
                "mamba_n_heads": 128,
            },
            source="fields of its config.json in a document on GitHub; they make the published 32.2 billion",
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                "layer_types": f"which of the 40 layers attend: {Confidence.RECALLED}",
                "mamba_n_heads": Confidence.RECALLED,
                "mamba_n_groups": Confidence.RECALLED,
            },
        ),
        Published(
            name="granite-4.0-h-tiny",
            hf_id="ibm-granite/granite-4.0-h-tiny",
            same_shape=("ibm-granite/granite-4.0-h-tiny-base",),
            config={
                **_GRANITE_4_H,
                "hidden_size": 1536,
                "num_attention_heads": 12,
                "num_key_value_heads": 4,
                "intermediate_size": 512,
                "shared_intermediate_size": 1024,
                "num_local_experts": 64,
                "num_experts_per_tok": 6,
                "mamba_n_heads": 48,
            },
            source=f"fields of Mamba in a test on GitHub, {_NUM_LAYERS_SOURCE}",
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                # together they make the published 6.9 billion
                "layer_types": f"which of the 40 layers attend: {Confidence.RECALLED}",
                "num_attention_heads": Confidence.RECALLED,
                "num_key_value_heads": Confidence.RECALLED,
                "intermediate_size": Confidence.RECALLED,
                "shared_intermediate_size": Confidence.RECALLED,
                "num_local_experts": Confidence.RECALLED,
                "num_experts_per_tok": Confidence.RECALLED,
            },
        ),
        Published(
            name="granite-4.0-h-micro",
            hf_id="ibm-granite/granite-4.0-h-micro",
            same_shape=("ibm-granite/granite-4.0-h-micro-base",),
            config={
                **_GRANITE_4_H,
                "hidden_size": 2048,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 8192,
                "shared_intermediate_size": 8192,
                "num_local_experts": 0,
                "num_experts_per_tok": 0,
                "mamba_n_heads": 64,
            },
            source=f"{_NUM_LAYERS_SOURCE}; the widths make the published 3.2 billion",
            confidence=Confidence.RECALLED,
        ),
    ),
)
