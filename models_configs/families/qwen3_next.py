"""Qwen3-Next: three gated delta nets, then one full attention with an output gate; experts and a gated shared one."""

from collections.abc import Mapping
from dataclasses import replace

from models_configs.attention import FullAttention
from models_configs.families.common import (
    EXPERT_MODULE,
    draft_layer_of,
    layer_of,
    layers_of,
    read_dense_mlp,
    read_heads,
    read_period,
    stored_format,
)
from models_configs.gated_delta import GatedDeltaNet
from models_configs.hf_config import HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY", "read_stack"]


def _attention(config: HFConfig) -> FullAttention:
    heads = read_heads(config, has_qk_norm=True)
    # the gate has an output for each element that attention gives; its weights lie in the query projection
    has_gate = config.flag("attn_output_gate", default=True)
    return FullAttention(
        replace(
            heads,
            gate_size=heads.num_heads * heads.head_size if has_gate else 0,
            # the fourth layer is the first of full attention
            weight_format=stored_format(config, "model.layers.3.self_attn.q_proj"),
        )
    )


def _gated_delta_net(config: HFConfig, ssm_dtype: str | None) -> GatedDeltaNet:
    return GatedDeltaNet(
        hidden_size=config.integer("hidden_size"),
        num_key_heads=config.integer("linear_num_key_heads"),
        key_size=config.integer("linear_key_head_dim"),
        num_value_heads=config.integer("linear_num_value_heads"),
        value_size=config.integer("linear_value_head_dim"),
        d_conv=config.integer("linear_conv_kernel_dim"),
        ssm_dtype=ssm_dtype,
        weight_format=stored_format(config, "model.layers.1.linear_attn.out_proj"),
    )


def _experts(config: HFConfig) -> MixtureOfExperts:
    hidden_size = config.integer("hidden_size")
    return MixtureOfExperts(
        hidden_size=hidden_size,
        expert_size=config.integer("moe_intermediate_size"),
        num_experts=config.integer("num_experts"),
        top_k=config.integer("num_experts_per_tok"),
        shared_expert_size=config.integer("shared_expert_intermediate_size"),
        num_router_extras=hidden_size,  # the shared expert's gate
        expert_format=stored_format(config, EXPERT_MODULE),
        shared_format=stored_format(config, "model.layers.1.mlp.shared_expert.down_proj"),
    )


def _mixers(config: HFConfig, known: Mapping[str, AttentionPart]) -> list[AttentionPart]:
    """By `layer_types`, or where that is left out every so many layers one of full attention."""
    if config.has("layer_types"):
        return config.layer_types(known)
    interval = read_period(config, "full_attention_interval", 4)
    kinds = ("full_attention", "linear_attention")
    return [known[kinds[bool((index + 1) % interval)]] for index in range(config.integer("num_hidden_layers"))]


def _mlps(config: HFConfig) -> list[MLPPart]:
    num_layers = config.integer("num_hidden_layers")
    if not (config.has("num_experts") and config.integer("num_experts")):
        return [read_dense_mlp(config)] * num_layers
    experts = _experts(config)
    step = read_period(config, "decoder_sparse_step", 1) if config.has("decoder_sparse_step") else 1
    dense_layers = config.integers("mlp_only_layers") if config.has("mlp_only_layers") else []
    is_dense = [index in dense_layers or bool((index + 1) % step) for index in range(num_layers)]
    dense = read_dense_mlp(config) if any(is_dense) else experts  # without dense layers their width may be left out
    return [dense if flag else experts for flag in is_dense]


def read_stack(config: HFConfig, *, ssm_dtype: str | None, num_draft_layers: int) -> Stack:
    """The layers, and those that draft: full attention with the last layer's MLP."""
    attention, mlps = _attention(config), _mlps(config)
    net = _gated_delta_net(config, ssm_dtype)
    mixers = _mixers(config, {"linear_attention": net, "full_attention": attention})

    def layer(index: int) -> Layer:
        return layer_of(config, mixers[index], mlps[index])

    draft_layer = draft_layer_of(config, attention, mlps[-1])
    return Stack(layers_of(config, layer), draft_layers=(draft_layer,) * num_draft_layers)


def _stack(config: HFConfig) -> Stack:
    # vLLM keeps the recurrent state in the convolution's dtype. The published config.json does not say that
    # the checkpoint has a layer for drafts; vLLM takes one for granted (qwen3_next_mtp.py).
    num_draft_layers = config.integer("num_nextn_predict_layers", default=1)
    return read_stack(config, ssm_dtype=None, num_draft_layers=num_draft_layers)


FAMILY = Family(
    model_types=("qwen3_next",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="qwen3-next-80b-a3b",
            hf_id="Qwen/Qwen3-Next-80B-A3B-Instruct",
            same_shape=("Qwen/Qwen3-Next-80B-A3B-Thinking",),
            config={
                "model_type": "qwen3_next",
                "num_hidden_layers": 48,
                "hidden_size": 2048,
                "full_attention_interval": 4,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "linear_num_key_heads": 16,
                "linear_key_head_dim": 128,
                "linear_num_value_heads": 32,
                "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "num_experts": 512,
                "num_experts_per_tok": 10,
                "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512,
                "intermediate_size": 5120,
                "vocab_size": 151936,
                "max_position_embeddings": 262144,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            source="github AI-Hypercomputer/maxtext@e591f30cbbf2 checkpoint_conversion/utils/hf_model_configs.py",
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
