"""SmolLM3: full attention, or a window in the layers without rotary positions; dense MLPs."""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import integer_of_each_layer, layer_of, read_dense_mlp, read_heads, read_period
from models_configs.hf_config import HFConfig
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _has_positions(config: HFConfig) -> list[bool]:
    """Whether each layer has rotary positions: 1 in `no_rope_layers` means that it has."""
    if config.has("no_rope_layers"):
        return [bool(mark) for mark in integer_of_each_layer(config, "no_rope_layers")]
    period = read_period(config, "no_rope_layer_interval", default=4)
    return [(index + 1) % period != 0 for index in range(config.integer("num_hidden_layers"))]


def _attention(config: HFConfig) -> list[AttentionPart]:
    """That of each layer."""
    heads = read_heads(config)
    full = FullAttention(heads)
    if not (config.flag("use_sliding_window", default=False) and config.has("sliding_window")):
        return [full] * config.integer("num_hidden_layers")
    sliding = SlidingWindowAttention(heads, config.integer("sliding_window"))
    if config.has("layer_types"):
        return config.layer_types({"sliding_attention": sliding, "full_attention": full})
    return [full if has_positions else sliding for has_positions in _has_positions(config)]


def _stack(config: HFConfig) -> Stack:
    mlp = read_dense_mlp(config)
    return Stack(tuple(layer_of(config, attention, mlp) for attention in _attention(config)))


FAMILY = Family(
    model_types=("smollm3",),
    stack=_stack,
    published=(
        Published(
            name="smollm3-3b",
            hf_id="HuggingFaceTB/SmolLM3-3B",
            config={
                "model_type": "smollm3",
                "num_hidden_layers": 36,
                "hidden_size": 2048,
                "num_attention_heads": 16,
                "num_key_value_heads": 4,
                "intermediate_size": 11008,
                "use_sliding_window": False,
                "no_rope_layer_interval": 4,
                "vocab_size": 128256,
                "max_position_embeddings": 65536,
                "tie_word_embeddings": True,
                "torch_dtype": "bfloat16",
            },
            source="transformers 5.24 SmolLM3Config (its defaults have this shape)",
            confidence=Confidence.CLASS_DEFAULT,
            exceptions={"max_position_embeddings": f"{Confidence.RECALLED}"},
        ),
    ),
)
