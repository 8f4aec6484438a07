"""Kimi-Linear and Kimi-K3: Kimi delta attention, latent attention in every fourth layer; experts and shared ones."""

from dataclasses import replace

from models_configs.families.common import layer_of, layers_of, read_dense_mlp, read_period, stored_format
from models_configs.families.deepseek_v3 import read_latent_attention
from models_configs.families.sources import aiconfigurator
from models_configs.gated_delta import KimiDelta
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.latent import LatentAttention
from models_configs.mlp import MixtureOfExperts
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]

_EXPERTS_MODULE = "model.layers.1.block_sparse_moe"


def _linear_config(config: HFConfig) -> HFConfig:
    return HFConfig(config.section("linear_attn_config"), f"{config.origin} (linear_attn_config)")


def _delta(config: HFConfig) -> KimiDelta:
    linear = _linear_config(config)
    return KimiDelta(
        hidden_size=config.integer("hidden_size"),
        num_heads=linear.integer("num_heads"),
        head_size=linear.integer("head_dim"),
        d_conv=linear.integer("short_conv_kernel_size"),
        has_full_rank_gate=linear.flag("use_full_rank_gate", default=False),
        ssm_dtype="float32",  # no field says so: vLLM keeps these states in float32 unless it is told otherwise
        weight_format=stored_format(config, "model.layers.1.self_attn.o_proj"),
    )


def _latent(config: HFConfig) -> LatentAttention:
    attention = read_latent_attention(config)
    has_gate = config.has("mla_use_output_gate") and config.flag("mla_use_output_gate", default=False)
    return replace(attention, gate_size=attention.num_heads * attention.value_size) if has_gate else attention


def _mixers(config: HFConfig) -> list[AttentionPart]:
    """By two lists of layers, which count from 1."""
    linear, num_layers = _linear_config(config), config.integer("num_hidden_layers")
    delta_layers, latent_layers = linear.integers("kda_layers"), linear.integers("full_attn_layers")
    if sorted(delta_layers + latent_layers) != list(range(1, num_layers + 1)):
        raise ConfigFieldError(f"kda_layers and full_attn_layers of {config.origin} must name {num_layers} layers once")
    delta, latent = _delta(config), _latent(config)
    return [delta if number in delta_layers else latent for number in range(1, num_layers + 1)]


def _experts(config: HFConfig) -> MixtureOfExperts:
    expert_size = config.integer("moe_intermediate_size")
    # K3's experts read and write fewer elements than the stream has, and what they write together has a norm
    inner_size = config.integer("routed_expert_hidden_size") if config.has("routed_expert_hidden_size") else None
    has_norm = inner_size is not None and config.flag("latent_moe_use_norm", default=False)
    return MixtureOfExperts(
        hidden_size=config.integer("hidden_size"),
        expert_size=expert_size,
        num_experts=config.integer("num_experts"),
        top_k=config.integer("num_experts_per_token"),
        shared_expert_size=config.integer("num_shared_experts") * expert_size,
        expert_hidden_size=inner_size,
        num_router_extras=inner_size if inner_size is not None and has_norm else 0,
        expert_format=stored_format(config, f"{_EXPERTS_MODULE}.experts.1.w2"),
        shared_format=stored_format(config, f"{_EXPERTS_MODULE}.shared_experts.down_proj"),
    )


def _stack(config: HFConfig) -> Stack:
    mixers, dense, experts = _mixers(config), read_dense_mlp(config), _experts(config)
    num_dense, period = config.integer("first_k_dense_replace"), read_period(config, "moe_layer_freq", 1)
    # where a layer reads from all earlier blocks of layers, each of its parts has a norm and a vector for that
    reads_blocks = config.has("attn_res_block_size")

    def layer(index: int) -> Layer:
        has_experts = index >= num_dense and index % period == 0
        mlp: MLPPart = experts if has_experts else dense
        return layer_of(config, mixers[index], mlp, num_norms=6 if reads_blocks else 2)

    return Stack(layers_of(config, layer), other_parameters=2 * config.integer("hidden_size") if reads_blocks else 0)


_KIMI = {
    "model_type": "kimi_linear",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "vocab_size": 163840,
    "max_position_embeddings": 1048576,
    "tie_word_embeddings": False,
}

FAMILY = Family(
    model_types=("kimi_linear", "kimi_k3"),
    stack=_stack,
    ties_embeddings=False,
    max_model_len=1048576,  # the published config.json has it under another name (model_max_length)
    published=(
        Published(
            name="kimi-linear-48b-a3b",
            hf_id="moonshotai/Kimi-Linear-48B-A3B-Instruct",
            same_shape=("moonshotai/Kimi-Linear-48B-A3B-Base",),
            config={
                **_KIMI,
                "num_hidden_layers": 27,
                "hidden_size": 2304,
                "num_attention_heads": 32,
                "linear_attn_config": {
                    "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
                    "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                    "num_heads": 32,
                    "head_dim": 128,
                    "short_conv_kernel_size": 4,
                },
                "intermediate_size": 9216,
                "num_experts": 256,
                "num_experts_per_token": 8,
                "num_shared_experts": 1,
                "moe_intermediate_size": 1024,
                "torch_dtype": "bfloat16",
            },
            source="transformers KimiLinearConfig, whose defaults are this model; github NVIDIA-NeMo/Megatron-Bridge",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="kimi-k3",
            hf_id="moonshotai/Kimi-K3",
            config={
                **_KIMI,
                "num_hidden_layers": 93,
                "hidden_size": 7168,
                "num_attention_heads": 96,
                "q_lora_rank": 1536,
                "mla_use_output_gate": True,
                "linear_attn_config": {
                    "kda_layers": [number for number in range(1, 92) if number % 4],
                    "full_attn_layers": [*range(4, 93, 4), 93],
                    "num_heads": 96,
                    "head_dim": 128,
                    "short_conv_kernel_size": 4,
                    "use_full_rank_gate": True,
                },
                "attn_res_block_size": 12,
                "intermediate_size": 33792,
                "num_experts": 896,
                "num_experts_per_token": 16,
                "num_shared_experts": 2,
                "moe_intermediate_size": 3072,
                "routed_expert_hidden_size": 3584,
                "latent_moe_use_norm": True,
                "dtype": "bfloat16",
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
                    "ignore": [
                        "re:.*self_attn.*",
                        "re:.*shared_experts.*",
                        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
                        "re:.*lm_head.*",
                    ],
                },
            },
            source=aiconfigurator("moonshotai/Kimi-K3"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
