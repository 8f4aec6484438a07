"""Llama 3: full attention in every layer, dense MLPs."""

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    layer = layer_of(config, FullAttention(read_heads(config)), read_dense_mlp(config))
    return Stack((layer,) * config.integer("num_hidden_layers"))


_LLAMA_3_1 = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

FAMILY = Family(
    model_types=("llama",),
    stack=_stack,
    published=(
        Published(
            name="llama-3.1-8b",
            hf_id="meta-llama/Llama-3.1-8B",
            same_shape=("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
            config={
                **_LLAMA_3_1,
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "intermediate_size": 14336,
            },
            source=aiconfigurator("meta-llama/Meta-Llama-3.1-8B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="llama-3.1-70b",
            hf_id="meta-llama/Llama-3.1-70B",
            same_shape=("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
            config={
                **_LLAMA_3_1,
                "num_hidden_layers": 80,
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "intermediate_size": 28672,
            },
            source=aiconfigurator("meta-llama/Meta-Llama-3.1-70B"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
