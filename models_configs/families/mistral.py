"""Mistral: the same window in every layer, or full attention in all; dense MLPs."""

from models_configs.families.common import layer_of, read_dense_mlp, read_heads, same_attention
from models_configs.families.sources import GENZ, LITGPT
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    heads, mlp = read_heads(config, has_qkv_bias=False, has_output_bias=False), read_dense_mlp(config)
    return Stack(tuple(layer_of(config, mixer, mlp) for mixer in same_attention(config, heads)))


_MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

FAMILY = Family(
    # mistral3 is Mistral with a vision tower, ministral the one whose layers differ
    model_types=("mistral", "mistral3", "ministral"),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="mistral-7b-v0.1",
            hf_id="mistralai/Mistral-7B-v0.1",
            same_shape=("mistralai/Mistral-7B-Instruct-v0.1",),
            config={
                **_MISTRAL,
                "num_hidden_layers": 32,
                "intermediate_size": 14336,
                "vocab_size": 32000,
                "sliding_window": 4096,
            },
            source=f"transformers 5.24 MistralConfig (its defaults have this shape); {LITGPT}",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            # its params.json has 131072 positions and full attention in every fourth layer; served from the
            # config.json, as here, it has the window in all
            name="ministral-8b",
            hf_id="mistralai/Ministral-8B-Instruct-2410",
            config={
                **_MISTRAL,
                "num_hidden_layers": 36,
                "intermediate_size": 12288,
                "vocab_size": 131072,
                "sliding_window": 32768,
            },
            source=f"github copy of the NX-AI xLSTM inference benchmark, hf_model_benchmark; {GENZ}/mistral.py",
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
