"""MiniMax-M2: full attention and experts in every layer, stored in 8 bits."""

from models_configs.attention import FullAttention
from models_configs.families.common import NVFP4_BUT_ATTENTION, layer_of, read_experts, read_heads
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]

_FULL_ATTENTION = 1


def _stack(config: HFConfig) -> Stack:
    if config.has("attn_type_list") and set(config.integers("attn_type_list")) != {_FULL_ATTENTION}:
        raise ConfigFieldError(f"attn_type_list of {config.origin} has other values than {_FULL_ATTENTION}")
    # a norm over all queries together and one over all keys
    has_norm = config.flag("use_qk_norm", default=True)
    heads = read_heads(config, has_qkv_bias=False, has_output_bias=False, has_wide_qk_norm=has_norm)
    experts = read_experts(
        config,
        size="intermediate_size",
        count="num_local_experts",
        shared_expert_size=config.integer("shared_intermediate_size", default=0),
    )
    # vLLM 0.32 does not load the layers that would draft (minimax_m2.py)
    return Stack((layer_of(config, FullAttention(heads), experts),) * config.integer("num_hidden_layers"))


_MINIMAX_M2 = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "use_qk_norm": True,
    "intermediate_size": 1536,
    "shared_intermediate_size": 0,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "attn_type_list": [_FULL_ATTENTION] * 62,
    "vocab_size": 200064,
    "max_position_embeddings": 196608,
    "tie_word_embeddings": False,
}


FAMILY = Family(
    model_types=("minimax_m2",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="minimax-m2",
            hf_id="MiniMaxAI/MiniMax-M2",
            same_shape=("MiniMaxAI/MiniMax-M2.5",),
            config={
                **_MINIMAX_M2,
                "quantization_config": {
                    "quant_method": "fp8",
                    "weight_block_size": [128, 128],
                    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
                },
            },
            source="github SoumilB7/unfold tests/unseen_model_configs/minimax-m2.json;"
            f" M2.5: {aiconfigurator('MiniMaxAI/MiniMax-M2.5')}",
            confidence=Confidence.CONFIG,
            exceptions={"torch_dtype": f"unset in the config.json; bfloat16: {Confidence.RECALLED}"},
        ),
        Published(
            name="minimax-m2.5-nvfp4",
            hf_id="nvidia/MiniMax-M2.5-NVFP4",
            config={**_MINIMAX_M2, "quantization_config": NVFP4_BUT_ATTENTION},
            source=aiconfigurator("nvidia/MiniMax-M2.5-NVFP4"),
            confidence=Confidence.CONFIG,
            exceptions={"torch_dtype": f"unset in the config.json; bfloat16: {Confidence.RECALLED}"},
        ),
    ),
)
