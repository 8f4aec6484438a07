"""Jamba: one attention layer in eight, Mamba-1 in the others; experts in every second layer."""

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, layers_of, read_dense_mlp, read_heads
from models_configs.families.sources import GENZ
from models_configs.hf_config import HFConfig
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
    )


def _stack(config: HFConfig) -> Stack:
    hidden_size = config.integer("hidden_size")
    intermediate_size = config.integer("intermediate_size")
    attention, mamba = FullAttention(read_heads(config)), _mamba(config)
    dense = read_dense_mlp(config)
    experts = MixtureOfExperts(
        hidden_size=hidden_size,
        expert_size=intermediate_size,
        num_experts=config.integer("num_experts"),
        top_k=config.integer("num_experts_per_tok"),
    )

    def is_in(kind: str, index: int) -> bool:
        return index % config.integer(f"{kind}_layer_period") == config.integer(f"{kind}_layer_offset")

    def layer(index: int) -> Layer:
        mixer: AttentionPart = attention if is_in("attn", index) else mamba
        mlp: MLPPart = experts if is_in("expert", index) else dense
        return layer_of(config, mixer, mlp)

    return Stack(layers_of(config, layer))


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

FAMILY = Family(
    model_types=("jamba",),
    stack=_stack,
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
            config={
                **_JAMBA,
                "num_hidden_layers": 72,
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "intermediate_size": 24576,
                "mamba_dt_rank": 512,
            },
            source=f"{GENZ}/misc.py jamba_1_5_large_config",
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
