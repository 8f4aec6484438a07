"""Gemma 2: a sliding window and full attention in turn, dense MLPs."""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads, slides
from models_configs.families.sources import GENZ, LITGPT
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    heads, mlp = read_heads(config), read_dense_mlp(config)
    # norms before and after each of the two parts
    full = layer_of(config, FullAttention(heads), mlp, num_norms=4)
    sliding = layer_of(config, SlidingWindowAttention(heads, config.integer("sliding_window")), mlp, num_norms=4)
    return Stack(tuple(sliding if is_sliding else full for is_sliding in slides(config, period=2)))


_MAXTEXT = "github AI-Hypercomputer/maxtext@e591f30cbbf2 checkpoint_conversion/utils/hf_model_configs.py"

_GEMMA_2 = {
    "model_type": "gemma2",
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

FAMILY = Family(
    model_types=("gemma2",),
    stack=_stack,
    published=(
        Published(
            name="gemma-2-2b",
            hf_id="google/gemma-2-2b",
            same_shape=("google/gemma-2-2b-it",),
            config={
                **_GEMMA_2,
                "num_hidden_layers": 26,
                "hidden_size": 2304,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "intermediate_size": 9216,
                "torch_dtype": "float32",
            },
            source=f"transformers 5.24 Gemma2Config (its defaults have this shape); {LITGPT}; {_MAXTEXT}",
            confidence=Confidence.TRANSCRIBED,
            exceptions={"torch_dtype": f"float32 for the base model, bfloat16 for -it: {Confidence.RECALLED}"},
        ),
        Published(
            name="gemma-2-9b",
            hf_id="google/gemma-2-9b",
            same_shape=("google/gemma-2-9b-it",),
            config={
                **_GEMMA_2,
                "num_hidden_layers": 42,
                "hidden_size": 3584,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "intermediate_size": 14336,
            },
            source="github doggy8088/GemmaTokenizerExtractor@a2757335b21b gemma-2-9b-it/config.json",
            confidence=Confidence.CONFIG,
            exceptions={"tie_word_embeddings": f"transformers Gemma2Config: {Confidence.CLASS_DEFAULT}"},
        ),
        Published(
            name="gemma-2-27b",
            hf_id="google/gemma-2-27b",
            same_shape=("google/gemma-2-27b-it",),
            config={
                **_GEMMA_2,
                "num_hidden_layers": 46,
                "hidden_size": 4608,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "intermediate_size": 36864,
            },
            source=f"{LITGPT}; {_MAXTEXT}; {GENZ}/google.py",
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
