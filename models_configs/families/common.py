"""What most families write alike in their configuration."""

from collections.abc import Callable

from models_configs.attention import Heads
from models_configs.hf_config import HFConfig
from models_configs.mlp import DenseMLP
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart

__all__ = [
    "ATTENTION_MODULE",
    "EXPERT_MODULE",
    "MLP_MODULE",
    "SHARED_EXPERT_MODULE",
    "layer_of",
    "layers_of",
    "read_dense_mlp",
    "read_heads",
]

# A matrix of each part, under the name that checkpoints give it: what a quantization_config exempts is said by name.
# Layer 1, because some exempt the first and the last layer.
ATTENTION_MODULE = "model.layers.1.self_attn.q_proj"
MLP_MODULE = "model.layers.1.mlp.down_proj"
EXPERT_MODULE = "model.layers.1.mlp.experts.1.down_proj"
SHARED_EXPERT_MODULE = "model.layers.1.mlp.shared_experts.down_proj"


def read_heads(
    config: HFConfig,
    *,
    has_qkv_bias: bool | None = None,
    has_output_bias: bool | None = None,
    has_qk_norm: bool = False,
    has_wide_qk_norm: bool = False,
    has_sinks: bool = False,
) -> Heads:
    """The attention heads; norms and sinks are a property of the family, not of its configuration.

    Biases are those of `attention_bias` unless the family says otherwise. A norm is over each query and
    key (one for all queries, one for all keys), a wide one over all of them together.
    """
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", default=num_heads)
    # where it is given it need not be the quotient
    head_size = config.integer("head_dim", default=hidden_size // num_heads)
    has_bias = config.flag("attention_bias", default=False) if None in (has_qkv_bias, has_output_bias) else False
    norms = 2 * head_size if has_qk_norm else (num_heads + num_kv_heads) * head_size if has_wide_qk_norm else 0
    return Heads(
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        has_qkv_bias=has_bias if has_qkv_bias is None else has_qkv_bias,
        has_output_bias=has_bias if has_output_bias is None else has_output_bias,
        num_norm_parameters=norms,
        has_sinks=has_sinks,
        weight_format=config.weight_format(ATTENTION_MODULE),
    )


def read_dense_mlp(config: HFConfig, size: str = "intermediate_size", *, is_gated: bool = True) -> DenseMLP:
    """A dense MLP, whose width is in the field `size`."""
    return DenseMLP(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer(size),
        is_gated=is_gated,
        weight_format=config.weight_format(MLP_MODULE),
    )


def layer_of(config: HFConfig, mixer: AttentionPart, mlp: MLPPart, num_norms: int = 2) -> Layer:
    """A mixer, an MLP, and so many norms over the hidden size."""
    return Layer(mixers=(mixer,), mlps=(mlp,), norm_parameters=num_norms * config.integer("hidden_size"))


def layers_of(config: HFConfig, layer: Callable[[int], Layer]) -> tuple[Layer, ...]:
    """As many layers as the configuration has, by their index."""
    return tuple(layer(index) for index in range(config.integer("num_hidden_layers")))
