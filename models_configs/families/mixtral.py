"""Mixtral: attention like Mistral's, experts in every layer."""

from models_configs.families.common import layer_of, read_experts, read_heads, same_attention
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    experts = read_experts(config, size="intermediate_size", count="num_local_experts")
    heads = read_heads(config, has_qkv_bias=False, has_output_bias=False)
    return Stack(tuple(layer_of(config, mixer, experts) for mixer in same_attention(config, heads)))


FAMILY = Family(
    model_types=("mixtral",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="mixtral-8x7b",
            hf_id="mistralai/Mixtral-8x7B-v0.1",
            same_shape=("mistralai/Mixtral-8x7B-Instruct-v0.1",),
            config={
                "model_type": "mixtral",
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "sliding_window": None,
                "vocab_size": 32000,
                "max_position_embeddings": 32768,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            source=aiconfigurator("mistralai/Mixtral-8x7B-v0.1"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
