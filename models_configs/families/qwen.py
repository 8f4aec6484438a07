"""Qwen 2.5 and Qwen 3: full attention, in some models a window in the upper layers; dense MLPs or experts."""

from models_configs.attention import FullAttention, Heads, SlidingWindowAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_experts, read_heads, read_period
from models_configs.families.sources import GENZ, aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _heads(config: HFConfig) -> Heads:
    if config.text("model_type") == "qwen2":
        return read_heads(config, has_qkv_bias=True, has_output_bias=False)
    return read_heads(config, has_qk_norm=True)


def _attention(config: HFConfig) -> list[AttentionPart]:
    """That of each layer. A window counts only where `use_sliding_window` says so, from `max_window_layers` on."""
    heads, num_layers = _heads(config), config.integer("num_hidden_layers")
    full = FullAttention(heads)
    if not (config.flag("use_sliding_window", default=False) and config.has("sliding_window")):
        return [full] * num_layers
    sliding = SlidingWindowAttention(heads, config.integer("sliding_window"))
    if config.has("layer_types"):
        return config.layer_types({"sliding_attention": sliding, "full_attention": full})
    # with experts the window is in every layer
    first = 0 if config.text("model_type") == "qwen3_moe" else config.integer("max_window_layers", default=28)
    return [sliding if index >= first else full for index in range(num_layers)]


def _mlps(config: HFConfig) -> list[MLPPart]:
    """That of each layer: experts in every `decoder_sparse_step`-th, unless `mlp_only_layers` names it."""
    num_layers = config.integer("num_hidden_layers")
    if config.text("model_type") != "qwen3_moe":
        return [read_dense_mlp(config)] * num_layers
    period = read_period(config, "decoder_sparse_step", default=1)
    dense_only = config.integers("mlp_only_layers") if config.has("mlp_only_layers") else []
    dense, experts = read_dense_mlp(config), read_experts(config)
    return [experts if index not in dense_only and (index + 1) % period == 0 else dense for index in range(num_layers)]


def _stack(config: HFConfig) -> Stack:
    parts = zip(_attention(config), _mlps(config), strict=True)
    return Stack(tuple(layer_of(config, attention, mlp) for attention, mlp in parts))


_QWEN = {
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}

_QWEN_2_5 = {
    **_QWEN,
    "model_type": "qwen2",
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
}

_QWEN_3 = {
    **_QWEN,
    "model_type": "qwen3",
    "head_dim": 128,
    "attention_bias": False,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}

_QWEN_3_235B = {
    **_QWEN_3,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

FAMILY = Family(
    model_types=("qwen2", "qwen3", "qwen3_moe"),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="qwen2.5-7b",
            hf_id="Qwen/Qwen2.5-7B-Instruct",
            config={
                **_QWEN_2_5,
                "num_hidden_layers": 28,
                "hidden_size": 3584,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "intermediate_size": 18944,
                "max_window_layers": 28,
            },
            source="github inference-sim/inference-sim@f90a1e3a6787 model_configs/qwen2.5-7b-instruct/config.json",
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen2.5-72b",
            hf_id="Qwen/Qwen2.5-72B-Instruct",
            config={
                **_QWEN_2_5,
                "num_hidden_layers": 80,
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "intermediate_size": 29568,
                "max_window_layers": 70,
            },
            source=f"{GENZ}/alibaba.py; github kvcache-ai/kvcache-blog@d455485bd1c5 (model data)",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="qwen3-8b",
            hf_id="Qwen/Qwen3-8B",
            config={
                **_QWEN_3,
                "num_hidden_layers": 36,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 12288,
            },
            source=aiconfigurator("Qwen/Qwen3-8B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3-32b",
            hf_id="Qwen/Qwen3-32B",
            config={
                **_QWEN_3,
                "num_hidden_layers": 64,
                "hidden_size": 5120,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "intermediate_size": 25600,
            },
            source=aiconfigurator("Qwen/Qwen3-32B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3-235b-a22b",
            hf_id="Qwen/Qwen3-235B-A22B",
            config=_QWEN_3_235B,
            source=aiconfigurator("Qwen/Qwen3-235B-A22B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="qwen3-235b-a22b-fp8",
            hf_id="Qwen/Qwen3-235B-A22B-FP8",
            config={
                **_QWEN_3_235B,
                "quantization_config": {
                    "quant_method": "fp8",
                    "weight_block_size": [128, 128],
                    # the file names the router and the norms of each layer
                    "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate"],
                },
            },
            source=aiconfigurator("Qwen/Qwen3-235B-A22B-FP8"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
