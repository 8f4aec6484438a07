"""Llama 3: full attention in every layer, dense MLPs."""

from models_configs.attention import FullAttention
from models_configs.families.common import read_heads
from models_configs.families.sources import aiconfigurator
from models_configs.mlp import DenseMLP
from models_configs.model import Layer
from models_configs.published import Confidence, Family, HFConfig, Published

__all__ = ["FAMILY"]


def _layers(config: HFConfig) -> tuple[Layer, ...]:
    hidden_size = config.integer("hidden_size")
    layer = Layer(
        attention=FullAttention(read_heads(config)),
        mlp=DenseMLP(hidden_size=hidden_size, intermediate_size=config.integer("intermediate_size")),
        norm_parameters=2 * hidden_size,
    )
    return (layer,) * config.integer("num_hidden_layers")


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
    layers=_layers,
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
