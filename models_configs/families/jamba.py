"""Jamba: one attention layer in eight, Mamba-1 in the others; experts in every second layer."""

from collections.abc import Callable

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, layers_of, read_dense_mlp, read_heads
from models_configs.families.sources import GENZ
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mamba import Mamba1
from models_configs.mlp import MixtureOfExperts
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _mamba(config: HFConfig) -> Mamba1:
    hidden_size = config.integer("hidden_size")
    return Mamba1(
        hidden_size=hidden_size,
        inner_size=config.integer("mamba_expand") * hidden_size,
        d_state=config.integer("mamba_d_state"),
        d_conv=config.integer("mamba_d_conv"),
        dt_rank=config.integer("mamba_dt_rank"),
        has_conv_bias=config.flag("mamba_conv_bias", default=True),
        has_proj_bias=config.flag("mamba_proj_bias", default=False),
        has_norms=True,
        weight_format=config.weight_format("model.layers.1.mamba.in_proj"),
    )


def _experts(config: HFConfig) -> MixtureOfExperts:
    return MixtureOfExperts(
        hidden_size=config.integer("hidden_size"),
        expert_size=config.integer("intermediate_size"),
        num_experts=config.integer("num_experts"),
        top_k=config.integer("num_experts_per_tok"),
        expert_format=config.weight_format("model.layers.1.feed_forward.experts.1.down_proj"),
    )


def _stack(config: HFConfig) -> Stack:
    attention, mamba = FullAttention(read_heads(config)), _mamba(config)
    dense = read_dense_mlp(config, module="model.layers.0.feed_forward.down_proj")
    # a single expert needs no router
    experts = _experts(config) if config.integer("num_experts") > 1 else dense

    attends, chooses = _is_in(config, "attn"), _is_in(config, "expert")

    def layer(index: int) -> Layer:
        mixer: AttentionPart = attention if attends(index) else mamba
        mlp: MLPPart = experts if chooses(index) else dense
        return layer_of(config, mixer, mlp)

    return Stack(layers_of(config, layer))


def _is_in(config: HFConfig, kind: str) -> Callable[[int], bool]:
    """Whether a layer is one of this kind: one in each period."""
    period, offset = config.integer(f"{kind}_layer_period"), config.integer(f"{kind}_layer_offset")
    if period < 1:
        raise ConfigFieldError(f"{kind}_layer_period of {config.origin} must be at least 1, got {period}")
    return lambda index: index % period == offset


_JAMBA = {
    "model_type": "jamba",
    "num_key_value_heads": 8,
    "vocab_size": 65536,
    "max_position_embeddings": 262144,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_MINI = {
    **_JAMBA,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
    "mamba_dt_rank": 256,
}

_LARGE = {
    **_JAMBA,
    "num_hidden_layers": 72,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "mamba_dt_rank": 512,
}

FAMILY = Family(
    model_types=("jamba",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="jamba-v0.1",
            hf_id="ai21labs/Jamba-v0.1",
            config=_MINI,
            source="github SoumilB7/unfold tests/unseen_model_configs/jamba-v0-1.json",
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="jamba-1.5-mini",
            hf_id="ai21labs/AI21-Jamba-Mini-1.5",
            same_shape=("ai21labs/AI21-Jamba-1.5-Mini",),
            config=_MINI,
            source=f"github sdpython/experimental-experiment torch_models/llm_model_helper.py; {GENZ}/misc.py",
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="jamba-1.5-large",
            hf_id="ai21labs/AI21-Jamba-Large-1.5",
            same_shape=("ai21labs/AI21-Jamba-1.5-Large",),
            config=_LARGE,
            source=f"{GENZ}/misc.py jamba_1_5_large_config",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="jamba-1.7-mini",
            hf_id="ai21labs/AI21-Jamba-Mini-1.7",
            same_shape=("ai21labs/AI21-Jamba-Mini-1.6",),
            config=_MINI,
            source="the shape of 1.5",
            confidence=Confidence.RECALLED,
        ),
        Published(
            name="jamba-1.7-large",
            hf_id="ai21labs/AI21-Jamba-Large-1.7",
            same_shape=("ai21labs/AI21-Jamba-Large-1.6",),
            config=_LARGE,
            source="the shape of 1.5",
            confidence=Confidence.RECALLED,
        ),
        Published(
            name="jamba-reasoning-3b",
            hf_id="ai21labs/AI21-Jamba-Reasoning-3B",
            config={
                **_JAMBA,
                "num_hidden_layers": 28,
                "hidden_size": 2560,
                "num_attention_heads": 20,
                "num_key_value_heads": 1,
                "intermediate_size": 8192,
                "attn_layer_period": 14,
                "attn_layer_offset": 7,
                "num_experts": 1,
                "num_experts_per_tok": 1,
                "mamba_dt_rank": 160,
                "tie_word_embeddings": True,
            },
            source="a port's script on GitHub that has its configuration; two test suites agree on experts and layers",
            confidence=Confidence.TRANSCRIBED,
            exceptions={"num_experts_per_tok": f"without meaning where there is one expert: {Confidence.RECALLED}"},
        ),
    ),
)
