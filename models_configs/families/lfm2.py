"""LFM2: gated short convolutions, and full attention in some layers; dense MLPs."""

from models_configs.attention import FullAttention
from models_configs.families.common import MLP_MODULE, layer_of, read_heads, stored_format
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mlp import DenseMLP
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack
from models_configs.short_conv import ShortConv

__all__ = ["FAMILY"]


def _short_conv(config: HFConfig) -> ShortConv:
    hidden_size = config.integer("hidden_size")
    return ShortConv(
        hidden_size=hidden_size,
        channels=config.integer("conv_dim", default=hidden_size),
        d_conv=config.integer("conv_L_cache"),
        has_bias=config.flag("conv_bias", default=False),
    )


def _mlp(config: HFConfig) -> DenseMLP:
    """Two thirds of the width that is given, times a factor and rounded up, unless the width is to stand as it is."""
    width = config.integer("block_ff_dim" if config.has("block_ff_dim") else "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", default=True):
        multiple = config.integer("block_multiple_of", default=256)
        width = -(-_scaled(2 * width // 3, config) // multiple) * multiple
    return DenseMLP(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=width,
        weight_format=stored_format(config, MLP_MODULE),
    )


def _scaled(width: int, config: HFConfig) -> int:
    factor = config.fields.get("block_ffn_dim_multiplier")
    if factor is None:
        return width
    if not isinstance(factor, int | float) or isinstance(factor, bool):
        raise ConfigFieldError(f"block_ffn_dim_multiplier in {config.origin} must be a number, got {factor!r}")
    return int(factor * width)


def _mixers(config: HFConfig) -> list[AttentionPart]:
    attention, conv = FullAttention(read_heads(config, has_qk_norm=True)), _short_conv(config)
    if config.has("layer_types"):
        return config.layer_types({"full_attention": attention, "conv": conv})
    attending = config.integers("full_attn_idxs")  # how the first checkpoints say it
    return [attention if index in attending else conv for index in range(config.integer("num_hidden_layers"))]


def _stack(config: HFConfig) -> Stack:
    mlp = _mlp(config)
    return Stack(tuple(layer_of(config, mixer, mlp) for mixer in _mixers(config)))


FAMILY = Family(
    model_types=("lfm2",),
    stack=_stack,
    published=(
        Published(
            name="lfm2-1.2b",
            hf_id="LiquidAI/LFM2-1.2B",
            config={
                "model_type": "lfm2",
                "num_hidden_layers": 16,
                "hidden_size": 2048,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "layer_types": [
                    *["conv", "conv", "full_attention"] * 3,
                    *["conv", "full_attention"] * 3,
                    "conv",
                ],
                "conv_dim": 2048,
                "conv_L_cache": 3,
                "conv_bias": False,
                "block_ff_dim": 12288,
                "block_auto_adjust_ff_dim": True,
                "block_ffn_dim_multiplier": 1.0,
                "block_multiple_of": 256,
                "vocab_size": 65536,
                "max_position_embeddings": 128000,
                "tie_word_embeddings": True,
                "dtype": "bfloat16",
            },
            source="github SoumilB7/unfold tests/unseen_model_configs/lfm2-1-2b.json",
            confidence=Confidence.CONFIG,
        ),
    ),
)
