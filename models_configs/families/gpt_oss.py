"""gpt-oss: sliding window and full attention in turn, experts in every layer, stored in 4 bits."""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import EXPERT_MODULE, layer_of, read_heads
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _attention_by_layer_type(config: HFConfig) -> dict[str, AttentionPart]:
    heads = read_heads(config, has_sinks=True)
    return {
        "full_attention": FullAttention(heads),
        "sliding_attention": SlidingWindowAttention(heads, window=config.integer("sliding_window")),
    }


def _experts(config: HFConfig) -> MixtureOfExperts:
    return MixtureOfExperts(
        hidden_size=config.integer("hidden_size"),
        expert_size=config.integer("intermediate_size"),
        num_experts=config.integer("num_local_experts"),
        top_k=config.integer("num_experts_per_tok"),
        has_bias=True,
        expert_format=config.weight_format(EXPERT_MODULE),
    )


def _stack(config: HFConfig) -> Stack:
    attention, experts = _attention_by_layer_type(config), _experts(config)
    return Stack(tuple(layer_of(config, mixer, experts) for mixer in config.layer_types(attention)))


_GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "attention_bias": True,
    "intermediate_size": 2880,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}

_EXCEPTIONS = {"torch_dtype": f"unset in the config.json; bfloat16 as in the weights: {Confidence.RECALLED}"}

FAMILY = Family(
    model_types=("gpt_oss",),
    stack=_stack,
    published=(
        Published(
            name="gpt-oss-20b",
            hf_id="openai/gpt-oss-20b",
            config={
                **_GPT_OSS,
                "num_hidden_layers": 24,
                "num_local_experts": 32,
                "layer_types": ["sliding_attention", "full_attention"] * 12,
            },
            source=aiconfigurator("openai/gpt-oss-20b"),
            confidence=Confidence.CONFIG,
            exceptions=_EXCEPTIONS,
        ),
        Published(
            name="gpt-oss-120b",
            hf_id="openai/gpt-oss-120b",
            config={
                **_GPT_OSS,
                "num_hidden_layers": 36,
                "num_local_experts": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 18,
            },
            source=aiconfigurator("openai/gpt-oss-120b"),
            confidence=Confidence.CONFIG,
            exceptions=_EXCEPTIONS,
        ),
    ),
)
