"""Command R7B and Command A: three sliding-window layers, then one of full attention; dense MLPs beside attention."""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads, slides
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    heads, mlp = read_heads(config), read_dense_mlp(config)
    # a token sees so many before it and itself (vLLM 0.32, commandr.py)
    window = config.integer("sliding_window") + 1
    # attention and MLP work side by side after one norm
    full = layer_of(config, FullAttention(heads), mlp, num_norms=1)
    sliding = layer_of(config, SlidingWindowAttention(heads, window), mlp, num_norms=1)
    return Stack(tuple(sliding if is_sliding else full for is_sliding in slides(config, period=4)))


_COMMAND = {
    "model_type": "cohere2",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": False,
    "vocab_size": 256000,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

FAMILY = Family(
    model_types=("cohere2", "cohere2_vision"),
    stack=_stack,
    published=(
        Published(
            name="command-r7b",
            hf_id="CohereLabs/c4ai-command-r7b-12-2024",
            same_shape=("CohereForAI/c4ai-command-r7b-12-2024",),
            config={
                **_COMMAND,
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "intermediate_size": 14336,
                "max_position_embeddings": 132096,
                "sliding_window_pattern": 4,
            },
            source="github kvcache-ai/kvcache-blog@d455485bd1c5 (model data); github copy of a COHERE2_CONFIG table",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="command-a",
            hf_id="CohereLabs/c4ai-command-a-03-2025",
            same_shape=("CohereForAI/c4ai-command-a-03-2025",),
            config={
                **_COMMAND,
                "num_hidden_layers": 64,
                "hidden_size": 12288,
                "num_attention_heads": 96,
                "intermediate_size": 36864,
                "max_position_embeddings": 131072,
                "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16,
            },
            source="github SoumilB7/unfold tests/unseen_model_configs/command-a-03-2025.json",
            confidence=Confidence.CONFIG,
        ),
    ),
)
