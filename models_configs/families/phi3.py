"""Phi-3: the same window in every layer, dense MLPs."""

from models_configs.families.common import layer_of, read_dense_mlp, read_heads, same_attention
from models_configs.families.sources import GENZ, LITGPT
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    heads, mlp = read_heads(config, has_qkv_bias=False, has_output_bias=False), read_dense_mlp(config)
    return Stack(tuple(layer_of(config, mixer, mlp) for mixer in same_attention(config, heads)))


_PHI_3_4K = {
    "model_type": "phi3",
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

FAMILY = Family(
    model_types=("phi3",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="phi-3-mini-4k",
            hf_id="microsoft/Phi-3-mini-4k-instruct",
            config={
                **_PHI_3_4K,
                "num_hidden_layers": 32,
                "hidden_size": 3072,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "intermediate_size": 8192,
            },
            source=f"transformers 5.24 Phi3Config (its defaults have this shape); {LITGPT}; {GENZ}/microsoft.py",
            confidence=Confidence.TRANSCRIBED,
            exceptions={"sliding_window": f"as in the medium-4k ({GENZ}/microsoft.py): {Confidence.RECALLED}"},
        ),
        Published(
            name="phi-3-medium-4k",
            hf_id="microsoft/Phi-3-medium-4k-instruct",
            config={
                **_PHI_3_4K,
                "num_hidden_layers": 40,
                "hidden_size": 5120,
                "num_attention_heads": 40,
                "num_key_value_heads": 10,
                "intermediate_size": 17920,
            },
            source=f"{GENZ}/microsoft.py",
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
