"""DeepSeek-V3, R1 and V3.2, Kimi-K2: latent attention; a few dense layers, then experts and shared ones; fp8."""

from dataclasses import replace

from models_configs.families.common import (
    ATTENTION_MODULE,
    NVFP4_BUT_ATTENTION,
    draft_layer_of,
    layer_of,
    layers_of,
    read_dense_mlp,
    read_experts,
    read_period,
    stored_format,
)
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.latent import LatentAttention
from models_configs.mlp import MixtureOfExperts
from models_configs.model import Layer
from models_configs.parts import MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY", "read_latent_attention"]


def read_latent_attention(config: HFConfig) -> LatentAttention:
    """Latent attention, as all configurations of its kind write it."""
    if config.has("attention_bias") and config.flag("attention_bias", default=False):
        raise ConfigFieldError(f"attention_bias of {config.origin}: latent attention with biases is not known")
    return LatentAttention(
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("num_attention_heads"),
        kv_rank=config.integer("kv_lora_rank"),
        rope_size=config.integer("qk_rope_head_dim"),
        nope_size=config.integer("qk_nope_head_dim"),
        value_size=config.integer("v_head_dim"),
        query_rank=config.integer("q_lora_rank") if config.has("q_lora_rank") else None,
        weight_format=stored_format(config, ATTENTION_MODULE),
    )


def _with_indexer(attention: LatentAttention, config: HFConfig) -> LatentAttention:
    """V3.2 chooses tokens by queries of their own, a key with a norm, and a weight for each of the queries' heads."""
    num_heads, head_size = config.integer("index_n_heads"), config.integer("index_head_dim")
    query = config.integer("q_lora_rank") * num_heads * head_size
    key, norm = attention.hidden_size * head_size, 2 * head_size
    return replace(
        attention,
        num_other_matrix_elements=query + key,
        num_other_parameters=norm + attention.hidden_size * num_heads,
    )


def _experts(config: HFConfig) -> MixtureOfExperts:
    shared_expert_size = config.integer("n_shared_experts") * config.integer("moe_intermediate_size")
    return read_experts(config, count="n_routed_experts", shared_expert_size=shared_expert_size)


def _stack(config: HFConfig) -> Stack:
    attention = read_latent_attention(config)
    if config.has("index_n_heads"):
        attention = _with_indexer(attention, config)
    dense, experts = read_dense_mlp(config), _experts(config)
    num_dense, period = config.integer("first_k_dense_replace"), read_period(config, "moe_layer_freq", 1)

    def layer(index: int) -> Layer:
        has_experts = index >= num_dense and index % period == 0
        mlp: MLPPart = experts if has_experts else dense
        return layer_of(config, attention, mlp)

    num_draft_layers = config.integer("num_nextn_predict_layers", default=0)
    draft_layers = (draft_layer_of(config, attention, experts),) * num_draft_layers
    return Stack(layers_of(config, layer), draft_layers=draft_layers)


_DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}

_KIMI_K2 = {
    **_DEEPSEEK_V3,
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_nextn_predict_layers": 0,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
}

# Routed experts only
_INT4_EXPERTS = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}}
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
}

FAMILY = Family(
    model_types=("deepseek_v3", "deepseek_v32", "kimi_k2"),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="deepseek-v3",
            hf_id="deepseek-ai/DeepSeek-V3",
            same_shape=("deepseek-ai/DeepSeek-V3-0324",),
            config=_DEEPSEEK_V3,
            source=aiconfigurator("deepseek-ai/DeepSeek-V3"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="deepseek-r1",
            hf_id="deepseek-ai/DeepSeek-R1",
            same_shape=("deepseek-ai/DeepSeek-R1-0528",),
            config=_DEEPSEEK_V3,
            source=aiconfigurator("deepseek-ai/DeepSeek-R1"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="deepseek-v3.2",
            hf_id="deepseek-ai/DeepSeek-V3.2",
            same_shape=("deepseek-ai/DeepSeek-V3.2-Exp",),
            config={**_DEEPSEEK_V3, "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128},
            source=aiconfigurator("deepseek-ai/DeepSeek-V3.2"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="kimi-k2",
            hf_id="moonshotai/Kimi-K2-Instruct",
            same_shape=("moonshotai/Kimi-K2-Base",),
            config=_KIMI_K2,
            source=aiconfigurator("moonshotai/Kimi-K2-Instruct"),
            confidence=Confidence.CONFIG,
        ),
        Published(  # the text model
            name="kimi-k2.5",
            hf_id="moonshotai/Kimi-K2.5",
            config={**_KIMI_K2, "max_position_embeddings": 262144, "quantization_config": _INT4_EXPERTS},
            source=aiconfigurator("moonshotai/Kimi-K2.5"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="kimi-k2.5-nvfp4",
            hf_id="nvidia/Kimi-K2.5-NVFP4",
            config={**_KIMI_K2, "max_position_embeddings": 262144, "quantization_config": NVFP4_BUT_ATTENTION},
            source=aiconfigurator("nvidia/Kimi-K2.5-NVFP4"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
