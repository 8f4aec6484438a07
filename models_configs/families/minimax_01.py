"""MiniMax-Text-01 and MiniMax-M1: seven layers of lightning attention, then one of full attention; experts."""

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, read_heads, stored_format
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.lightning import LightningAttention
from models_configs.mlp import MixtureOfExperts
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]

_EXPERTS_MODULE = "model.layers.1.block_sparse_moe"


def _experts(config: HFConfig) -> MixtureOfExperts:
    hidden_size = config.integer("hidden_size")
    shared_size = config.integer("shared_intermediate_size") if config.has("shared_intermediate_size") else 0
    return MixtureOfExperts(
        hidden_size=hidden_size,
        expert_size=config.integer("intermediate_size"),
        num_experts=config.integer("num_local_experts"),
        top_k=config.integer("num_experts_per_tok"),
        shared_expert_size=shared_size,
        num_router_extras=hidden_size if shared_size else 0,  # the shared expert's gate
        expert_format=stored_format(config, f"{_EXPERTS_MODULE}.experts.1.w2"),
        shared_format=stored_format(config, f"{_EXPERTS_MODULE}.shared_mlp.down_proj"),
    )


def _mixers(config: HFConfig) -> list[AttentionPart]:
    """By `attn_type_list` (0 for lightning attention, 1 for full), or as transformers writes it by `layer_types`."""
    heads = read_heads(config)
    full = FullAttention(heads)
    lightning = LightningAttention(
        hidden_size=heads.hidden_size,
        num_heads=heads.num_heads,
        head_size=heads.head_size,
        weight_format=stored_format(config, "model.layers.1.self_attn.out_proj"),
    )
    if not config.has("attn_type_list"):
        return config.layer_types({"linear_attention": lightning, "full_attention": full})
    types, num_layers = config.integers("attn_type_list"), config.integer("num_hidden_layers")
    if len(types) != num_layers or not set(types) <= {0, 1}:
        raise ConfigFieldError(f"attn_type_list of {config.origin} must be {num_layers} numbers, each 0 or 1")
    return [full if kind else lightning for kind in types]


def _stack(config: HFConfig) -> Stack:
    experts = _experts(config)
    return Stack(tuple(layer_of(config, mixer, experts) for mixer in _mixers(config)))


_MINIMAX = {
    "num_hidden_layers": 80,
    "hidden_size": 6144,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "intermediate_size": 9216,
    "shared_intermediate_size": 0,
    "vocab_size": 200064,
    "max_position_embeddings": 10240000,
    "tie_word_embeddings": False,
}

_EXCEPTIONS = {"torch_dtype": f"unset in the config.json; bfloat16 as in the weights: {Confidence.RECALLED}"}

FAMILY = Family(
    model_types=("minimax_text_01", "minimax_m1", "minimax"),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="minimax-text-01",
            hf_id="MiniMaxAI/MiniMax-Text-01",
            config={**_MINIMAX, "model_type": "minimax_text_01"},
            source="arXiv 2501.08313 (456 billion weights); shape of MiniMax-M1-80k, which continues its training",
            confidence=Confidence.TRANSCRIBED,
            exceptions=_EXCEPTIONS,
        ),
        Published(
            name="minimax-m1-80k",
            hf_id="MiniMaxAI/MiniMax-M1-80k",
            same_shape=("MiniMaxAI/MiniMax-M1-40k",),
            config={**_MINIMAX, "model_type": "minimax_m1"},
            source="copy of the config.json on GitHub; arXiv 2506.13585 (456 billion weights)",
            confidence=Confidence.CONFIG,
            exceptions=_EXCEPTIONS,
        ),
    ),
)
