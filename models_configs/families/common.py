"""What most families write alike in their configuration."""

from collections.abc import Callable

from models_configs.attention import FullAttention, Heads, SlidingWindowAttention
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mlp import DenseMLP, MixtureOfExperts
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart
from models_configs.quantization import WeightFormat

__all__ = [
    "ATTENTION_MODULE",
    "EXPERT_MODULE",
    "MLP_MODULE",
    "NVFP4_BUT_ATTENTION",
    "SHARED_EXPERT_MODULE",
    "draft_layer_of",
    "integer_of_each_layer",
    "layer_of",
    "layers_of",
    "read_dense_mlp",
    "read_experts",
    "read_heads",
    "read_period",
    "same_attention",
    "shares_kv",
    "slides",
    "stored_format",
]

# A matrix of each part, under the name that checkpoints give it: what a quantization_config exempts is said by name.
# Layer 1, because some exempt the first and the last layer.
ATTENTION_MODULE = "model.layers.1.self_attn.q_proj"
MLP_MODULE = "model.layers.1.mlp.down_proj"
EXPERT_MODULE = "model.layers.1.mlp.experts.1.down_proj"
SHARED_EXPERT_MODULE = "model.layers.1.mlp.shared_experts.down_proj"

NVFP4_BUT_ATTENTION = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "ignore": ["lm_head", "model.layers.*.self_attn", "model.layers.*.block_sparse_moe.gate"],
}
"""As NVIDIA stores models with experts in 4 bits; its files name each layer."""


def stored_format(config: HFConfig, module: str) -> WeightFormat | None:
    """How a module's matrices are stored, under its name or one of the longer ones in multimodal checkpoints."""
    names = (module, module.replace("model.", "model.language_model.", 1), f"language_model.{module}")
    formats = [config.weight_format(name) for name in names]
    return None if None in formats else formats[0]


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
        weight_format=stored_format(config, ATTENTION_MODULE),
    )


def read_dense_mlp(
    config: HFConfig, size: str = "intermediate_size", *, is_gated: bool = True, module: str = MLP_MODULE
) -> DenseMLP:
    """A dense MLP, whose width is in the field `size`; checkpoints call one of its matrices `module`."""
    hidden_size, width = config.integer("hidden_size"), config.integer(size)
    has_bias = config.has("mlp_bias") and config.flag("mlp_bias", default=False)
    return DenseMLP(
        hidden_size=hidden_size,
        intermediate_size=width,
        is_gated=is_gated,
        num_bias_parameters=((1 + is_gated) * width + hidden_size) * has_bias,
        weight_format=stored_format(config, module),
    )


def read_experts(
    config: HFConfig,
    *,
    size: str = "moe_intermediate_size",
    count: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    shared_expert_size: int = 0,
    num_router_extras: int = 0,
) -> MixtureOfExperts:
    """Routed experts, whose width and number and how many a token passes are in these fields; a shared one beside."""
    return MixtureOfExperts(
        hidden_size=config.integer("hidden_size"),
        expert_size=config.integer(size),
        num_experts=config.integer(count),
        top_k=config.integer(top_k),
        shared_expert_size=shared_expert_size,
        num_router_extras=num_router_extras,
        expert_format=stored_format(config, EXPERT_MODULE),
        shared_format=stored_format(config, SHARED_EXPERT_MODULE),
    )


def same_attention(config: HFConfig, heads: Heads) -> list[AttentionPart]:
    """That of each layer, all alike unless `layer_types` tells them apart: with a window where there is one."""
    full = FullAttention(heads)
    sliding = SlidingWindowAttention(heads, config.integer("sliding_window")) if config.has("sliding_window") else full
    if config.has("layer_types"):
        return config.layer_types({"sliding_attention": sliding, "full_attention": full})
    return [sliding] * config.integer("num_hidden_layers")


def slides(config: HFConfig, period: int) -> list[bool]:
    """Whether each layer has a window: as `layer_types` says, or else all but the last of each period have.

    The period is `sliding_window_pattern`, or that of the family where it is not given.
    """
    if config.has("layer_types"):
        return config.layer_types({"sliding_attention": True, "full_attention": False})
    period = read_period(config, "sliding_window_pattern", default=period)
    return [(index + 1) % period != 0 for index in range(config.integer("num_hidden_layers"))]


def shares_kv(config: HFConfig) -> list[bool]:
    """Whether each layer reads the KV of an earlier one: the last `num_kv_shared_layers` do."""
    num_layers, num_shared = config.integer("num_hidden_layers"), config.integer("num_kv_shared_layers", default=0)
    if not 0 <= num_shared < num_layers:
        raise ConfigFieldError(
            f"num_kv_shared_layers of {config.origin} must be between 0 and {num_layers - 1}, got {num_shared}"
        )
    return [index >= num_layers - num_shared for index in range(num_layers)]


def integer_of_each_layer(config: HFConfig, name: str) -> list[int]:
    """A field with one whole number for all layers, or with one for each."""
    num_layers = config.integer("num_hidden_layers")
    if not isinstance(config.fields.get(name), list):
        return [config.integer(name)] * num_layers
    integers = config.integers(name)
    if len(integers) != num_layers:
        raise ConfigFieldError(f"{config.origin} has {num_layers} layers but {len(integers)} values of {name}")
    return integers


def read_period(config: HFConfig, name: str, default: int | None = None) -> int:
    """A field that says that every so many layers there is one of another kind."""
    period = config.integer(name, default=default)
    if period < 1:
        raise ConfigFieldError(f"{name} of {config.origin} must be at least 1, got {period}")
    return period


def layer_of(config: HFConfig, mixer: AttentionPart, mlp: MLPPart, num_norms: int = 2) -> Layer:
    """A mixer, an MLP, and so many norms over the hidden size."""
    return Layer(mixers=(mixer,), mlps=(mlp,), norm_parameters=num_norms * config.integer("hidden_size"))


def draft_layer_of(config: HFConfig, mixer: AttentionPart, mlp: MLPPart) -> Layer:
    """A layer that predicts a further token (MTP), with what joins the hidden state and the last token's embedding.

    Three norms and a projection from twice the hidden size. Copies of embedding and output head, which
    some checkpoints bring along, are not counted.
    """
    hidden_size = config.integer("hidden_size")
    joining = 3 * hidden_size + 2 * hidden_size**2
    return Layer(mixers=(mixer,), mlps=(mlp,), norm_parameters=2 * hidden_size + joining)


def layers_of(config: HFConfig, layer: Callable[[int], Layer]) -> tuple[Layer, ...]:
    """As many layers as the configuration has, by their index."""
    return tuple(layer(index) for index in range(config.integer("num_hidden_layers")))
