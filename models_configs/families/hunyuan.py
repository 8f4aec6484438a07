"""Hunyuan-A13B: full attention, routed experts and a shared one in every layer."""

from models_configs.attention import FullAttention
from models_configs.families.common import EXPERT_MODULE, integer_of_each_layer, layer_of, read_heads, stored_format
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _experts(config: HFConfig) -> list[MixtureOfExperts]:
    """Those of each layer: size, choice and shared experts may differ."""
    size = "moe_intermediate_size" if config.has("moe_intermediate_size") else "intermediate_size"
    figures = zip(
        *(integer_of_each_layer(config, name) for name in (size, "moe_topk", "num_shared_expert")), strict=True
    )
    expert_format = stored_format(config, EXPERT_MODULE)
    shared_format = stored_format(config, "model.layers.1.mlp.shared_mlp.down_proj")
    return [
        MixtureOfExperts(
            hidden_size=config.integer("hidden_size"),
            expert_size=expert_size,
            num_experts=config.integer("num_experts"),
            top_k=top_k,
            # as wide as what the configuration calls the intermediate size, each
            shared_expert_size=num_shared * config.integer("intermediate_size"),
            expert_format=expert_format,
            shared_format=shared_format,
        )
        for expert_size, top_k, num_shared in figures
    ]


def _stack(config: HFConfig) -> Stack:
    if config.flag("use_cla", default=False):
        raise ConfigFieldError(f"use_cla of {config.origin}: layers that share their KV are not known here")
    attention = FullAttention(read_heads(config, has_qk_norm=config.flag("use_qk_norm", default=True)))
    return Stack(tuple(layer_of(config, attention, experts) for experts in _experts(config)))


FAMILY = Family(
    model_types=("hunyuan_v1_moe",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="hunyuan-a13b",
            hf_id="tencent/Hunyuan-A13B-Instruct",
            config={
                "model_type": "hunyuan_v1_moe",
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "use_qk_norm": True,
                "use_cla": False,
                "intermediate_size": 3072,
                "moe_intermediate_size": [3072] * 32,
                "num_experts": 64,
                "moe_topk": [8] * 32,
                "num_shared_expert": [1] * 32,
                "vocab_size": 128167,
                "max_position_embeddings": 32768,
                "tie_word_embeddings": True,
                "torch_dtype": "bfloat16",
            },
            source="no config.json at hand; its totals agree with github vllm-project/recipes (80B, 13B active)",
            confidence=Confidence.RECALLED,
        ),
    ),
)
