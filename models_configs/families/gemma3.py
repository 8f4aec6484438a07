"""Gemma 3: five sliding-window layers, then one of full attention; dense MLPs.

The figures are those of the text model; the SigLIP vision tower of the 4b, 12b and 27b (0.4 billion
parameters) is not counted.
"""

from models_configs.attention import FullAttention, SlidingWindowAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads, slides
from models_configs.families.sources import GENZ, LITGPT
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    heads, mlp = read_heads(config, has_qk_norm=True), read_dense_mlp(config)
    # norms before and after each of the two parts
    full = layer_of(config, FullAttention(heads), mlp, num_norms=4)
    sliding = layer_of(config, SlidingWindowAttention(heads, config.integer("sliding_window")), mlp, num_norms=4)
    return Stack(tuple(sliding if is_sliding else full for is_sliding in slides(config, period=6)))


_DEEPMIND = "github google-deepmind/gemma gemma/gm/nn/_gemma.py"
_MAXTEXT = "github AI-Hypercomputer/maxtext@e591f30cbbf2 checkpoint_conversion/utils/hf_model_configs.py"

_GEMMA_3 = {
    "model_type": "gemma3_text",
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

_MULTIMODAL = {
    **_GEMMA_3,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
}

_MULTIMODAL_EXCEPTIONS = {
    # the config.json of the multimodal ones leaves both to Gemma3TextConfig
    "vocab_size": f"transformers Gemma3TextConfig (262144 and 64 of padding): {Confidence.CLASS_DEFAULT}",
    "max_position_embeddings": f"transformers Gemma3TextConfig: {Confidence.CLASS_DEFAULT}",
}

FAMILY = Family(
    model_types=("gemma3", "gemma3_text"),
    stack=_stack,
    class_defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    published=(
        Published(
            name="gemma-3-1b",
            hf_id="google/gemma-3-1b-it",
            same_shape=("google/gemma-3-1b-pt",),
            config={
                **_GEMMA_3,
                "num_hidden_layers": 26,
                "hidden_size": 1152,
                "num_attention_heads": 4,
                "num_key_value_heads": 1,
                "head_dim": 256,
                "intermediate_size": 6912,
                "vocab_size": 262144,
                "max_position_embeddings": 32768,
                "sliding_window": 512,
            },
            source=f"{LITGPT}; {_DEEPMIND} Gemma3_1B; {GENZ}/google.py",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="gemma-3-4b",
            hf_id="google/gemma-3-4b-it",
            same_shape=("google/gemma-3-4b-pt",),
            config={
                **_MULTIMODAL,
                "num_hidden_layers": 34,
                "hidden_size": 2560,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "intermediate_size": 10240,
            },
            source=f"{LITGPT}; {_MAXTEXT}; {_DEEPMIND}",
            confidence=Confidence.TRANSCRIBED,
            exceptions=_MULTIMODAL_EXCEPTIONS,
        ),
        Published(
            name="gemma-3-12b",
            hf_id="google/gemma-3-12b-it",
            same_shape=("google/gemma-3-12b-pt",),
            config={
                **_MULTIMODAL,
                "num_hidden_layers": 48,
                "hidden_size": 3840,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "intermediate_size": 15360,
            },
            source=f"{LITGPT}; {_MAXTEXT}; {_DEEPMIND}",
            confidence=Confidence.TRANSCRIBED,
            exceptions=_MULTIMODAL_EXCEPTIONS,
        ),
        Published(
            name="gemma-3-27b",
            hf_id="google/gemma-3-27b-it",
            same_shape=("google/gemma-3-27b-pt",),
            config={
                **_MULTIMODAL,
                "num_hidden_layers": 62,
                "hidden_size": 5376,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "intermediate_size": 21504,
            },
            source=f"{LITGPT}; {_MAXTEXT}; {_DEEPMIND}",
            confidence=Confidence.TRANSCRIBED,
            exceptions=_MULTIMODAL_EXCEPTIONS,
        ),
    ),
)
