"""Llama 4: three layers that attend within chunks, then one of full attention; experts.

The figures are those of the text model; the vision tower is not counted.
"""

from models_configs.attention import ChunkedAttention, FullAttention
from models_configs.families.common import layer_of, layers_of, read_dense_mlp, read_heads, read_period
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mlp import MixtureOfExperts
from models_configs.model import Layer
from models_configs.parts import AttentionPart, MLPPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    hidden_size = config.integer("hidden_size")
    heads = read_heads(config)  # `use_qk_norm` is a norm without weights
    full = FullAttention(heads)
    chunked = ChunkedAttention(heads, config.integer("attention_chunk_size")) if _has_chunks(config) else full
    dense = read_dense_mlp(config, "intermediate_size_mlp")
    experts = MixtureOfExperts(
        hidden_size=hidden_size,
        expert_size=config.integer("intermediate_size"),
        num_experts=config.integer("num_local_experts"),
        top_k=config.integer("num_experts_per_tok"),
        shared_expert_size=config.integer("intermediate_size"),
        expert_format=config.weight_format("model.layers.1.feed_forward.experts.down_proj"),
        shared_format=config.weight_format("model.layers.1.feed_forward.shared_expert.down_proj"),
    )
    is_chunked, expert_layers = _chunked_layers(config), _expert_layers(config)

    def layer(index: int) -> Layer:
        attention: AttentionPart = chunked if is_chunked[index] else full
        mlp: MLPPart = experts if index in expert_layers else dense
        return layer_of(config, attention, mlp)

    return Stack(layers_of(config, layer))


def _has_chunks(config: HFConfig) -> bool:
    """A chunk of null is none, a chunk that is left out an error."""
    return config.has("attention_chunk_size") or "attention_chunk_size" not in config.fields


def _chunked_layers(config: HFConfig) -> list[bool]:
    """Whether each layer attends within chunks: those without rotary positions attend to everything."""
    if config.has("layer_types"):
        return config.layer_types({"chunked_attention": True, "full_attention": False})
    num_layers = config.integer("num_hidden_layers")
    if config.fields.get("no_rope_layers"):  # 1 where there are positions, in spite of the name
        has_positions = config.integers("no_rope_layers")
        if len(has_positions) != num_layers:
            raise ConfigFieldError(f"{config.origin} has {num_layers} layers but {len(has_positions)} no_rope_layers")
        return [bool(flag) for flag in has_positions]
    period = read_period(config, "no_rope_layer_interval", default=4)
    return [(index + 1) % period != 0 for index in range(num_layers)]


def _expert_layers(config: HFConfig) -> set[int]:
    if config.fields.get("moe_layers"):
        return set(config.integers("moe_layers"))
    period = read_period(config, "interleave_moe_layer_step")
    return set(range(period - 1, config.integer("num_hidden_layers"), period))


_LLAMA_4 = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_chunk_size": 8192,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_experts_per_tok": 1,
    "vocab_size": 202048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_EXCEPTIONS = {
    "no_rope_layer_interval": f"transformers Llama4TextConfig: {Confidence.CLASS_DEFAULT}",
    "tie_word_embeddings": f"transformers Llama4TextConfig: {Confidence.CLASS_DEFAULT}",
}

FAMILY = Family(
    model_types=("llama4", "llama4_text"),
    stack=_stack,
    published=(
        Published(
            name="llama-4-scout",
            hf_id="meta-llama/Llama-4-Scout-17B-16E-Instruct",
            same_shape=("meta-llama/Llama-4-Scout-17B-16E",),
            config={
                **_LLAMA_4,
                "num_local_experts": 16,
                "interleave_moe_layer_step": 1,
                "max_position_embeddings": 10485760,
            },
            source=aiconfigurator("meta-llama/Llama-4-Scout-17B-16E-Instruct"),
            confidence=Confidence.CONFIG,
            exceptions=_EXCEPTIONS,
        ),
        Published(
            name="llama-4-maverick",
            hf_id="meta-llama/Llama-4-Maverick-17B-128E-Instruct",
            same_shape=("meta-llama/Llama-4-Maverick-17B-128E",),
            config={
                **_LLAMA_4,
                "num_local_experts": 128,
                "interleave_moe_layer_step": 2,
                "max_position_embeddings": 1048576,
            },
            source=aiconfigurator("meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
            confidence=Confidence.CONFIG,
            exceptions=_EXCEPTIONS,
        ),
    ),
)
