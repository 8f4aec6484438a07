"""MiMo-V2-Flash: a short window in most layers, full attention with fewer KV heads in the others; experts.

Keys are larger than values. The checkpoint is stored in 8 bits.
"""

from dataclasses import replace

from models_configs.attention import FullAttention, Heads, SlidingWindowAttention
from models_configs.families.common import (
    draft_layer_of,
    integer_of_each_layer,
    layer_of,
    read_dense_mlp,
    read_experts,
    read_heads,
)
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _full_heads(config: HFConfig) -> Heads:
    has_sinks = config.flag("add_full_attention_sink_bias", default=False)
    heads = read_heads(config, has_output_bias=False, has_sinks=has_sinks)
    return replace(heads, head_size_v=config.integer("v_head_dim", default=heads.head_size))


def _sliding_heads(config: HFConfig, full: Heads) -> Heads:
    return replace(
        full,
        num_heads=config.integer("swa_num_attention_heads", default=full.num_heads),
        num_kv_heads=config.integer("swa_num_key_value_heads", default=full.num_kv_heads),
        head_size=config.integer("swa_head_dim", default=full.head_size),
        head_size_v=config.integer("swa_v_head_dim", default=full.value_size),
        has_sinks=config.flag("add_swa_attention_sink_bias", default=False),
    )


def _marks(config: HFConfig, name: str) -> list[bool]:
    """A list with 1 or 0 for each layer."""
    marks = integer_of_each_layer(config, name)
    if unknown := set(marks) - {0, 1}:
        raise ConfigFieldError(f"unknown values in {name} of {config.origin}: {', '.join(map(str, sorted(unknown)))}")
    return [mark == 1 for mark in marks]


def _experts(config: HFConfig) -> MixtureOfExperts:
    num_shared = config.integer("n_shared_experts") if config.has("n_shared_experts") else 0
    shared_size = num_shared * config.integer("moe_intermediate_size")
    return read_experts(config, count="n_routed_experts", shared_expert_size=shared_size)


def _stack(config: HFConfig) -> Stack:
    heads = _full_heads(config)
    full = FullAttention(heads)
    sliding = SlidingWindowAttention(_sliding_heads(config, heads), config.integer("sliding_window"))
    dense, experts = read_dense_mlp(config), _experts(config)
    kinds = zip(_marks(config, "hybrid_layer_pattern"), _marks(config, "moe_layer_freq"), strict=True)
    return Stack(
        tuple(
            layer_of(config, sliding if is_sliding else full, experts if is_sparse else dense)
            for is_sliding, is_sparse in kinds
        ),
        # no field tells of it; of those in the checkpoint vLLM 0.32 loads the first (mimo_v2_mtp.py)
        draft_layers=(draft_layer_of(config, sliding, dense),),
    )


FAMILY = Family(
    model_types=("mimo_v2_flash",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="mimo-v2-flash",
            hf_id="XiaomiMiMo/MiMo-V2-Flash",
            config={
                "model_type": "mimo_v2_flash",
                "num_hidden_layers": 48,
                "hidden_size": 4096,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 192,
                "v_head_dim": 128,
                "swa_num_attention_heads": 64,
                "swa_num_key_value_heads": 8,
                "swa_head_dim": 192,
                "swa_v_head_dim": 128,
                "attention_bias": False,
                "add_swa_attention_sink_bias": True,
                "add_full_attention_sink_bias": False,
                "sliding_window": 128,
                "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, *[1, 1, 1, 1, 1, 0] * 7],
                "intermediate_size": 16384,
                "moe_layer_freq": [0] + [1] * 47,
                "moe_intermediate_size": 2048,
                "n_routed_experts": 256,
                "num_experts_per_tok": 8,
                "vocab_size": 152576,
                "max_position_embeddings": 262144,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
                "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            },
            source=aiconfigurator("XiaomiMiMo/MiMo-V2-Flash"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
