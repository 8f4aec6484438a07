"""Llama 2 and 3: full attention in every layer, dense MLPs."""

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, read_dense_mlp, read_heads
from models_configs.families.sources import LITGPT, aiconfigurator
from models_configs.hf_config import HFConfig
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    layer = layer_of(config, FullAttention(read_heads(config)), read_dense_mlp(config))
    return Stack((layer,) * config.integer("num_hidden_layers"))


_LLAMA_3_1 = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_70B = {
    **_LLAMA_3_1,
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}

_8B = {
    **_LLAMA_3_1,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
}

# NVIDIA's checkpoints say it in a second file, in the words of ModelOpt
_MODELOPT_FP8 = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}
_HF_QUANT_CONFIG = "model_configs/nvidia--Llama-3.1-70B-Instruct-FP8_hf_quant_config.json of the same package"

FAMILY = Family(
    model_types=("llama",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="llama-3.1-8b",
            hf_id="meta-llama/Llama-3.1-8B",
            same_shape=("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
            config=_8B,
            source=aiconfigurator("meta-llama/Meta-Llama-3.1-8B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="llama-3.1-8b-fp8",
            hf_id="nvidia/Llama-3.1-8B-Instruct-FP8",
            config={**_8B, "quantization_config": _MODELOPT_FP8},
            source=aiconfigurator("meta-llama/Meta-Llama-3.1-8B"),
            confidence=Confidence.CONFIG,
            exceptions={"quantization_config": f"taken from the 70B: {_HF_QUANT_CONFIG}; {Confidence.RECALLED}"},
        ),
        Published(
            name="llama-3.1-70b",
            hf_id="meta-llama/Llama-3.1-70B",
            same_shape=("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
            config=_70B,
            source=aiconfigurator("meta-llama/Meta-Llama-3.1-70B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="llama-3.1-70b-fp8",
            hf_id="nvidia/Llama-3.1-70B-Instruct-FP8",
            config={**_70B, "quantization_config": _MODELOPT_FP8},
            source=aiconfigurator("nvidia/Llama-3.1-70B-Instruct-FP8"),
            confidence=Confidence.CONFIG,
            exceptions={"quantization_config": _HF_QUANT_CONFIG},
        ),
        Published(
            name="llama-3.1-405b",
            hf_id="meta-llama/Llama-3.1-405B",
            same_shape=("meta-llama/Llama-3.1-405B-Instruct", "meta-llama/Meta-Llama-3.1-405B"),
            config={
                **_LLAMA_3_1,
                "num_hidden_layers": 126,
                "hidden_size": 16384,
                "num_attention_heads": 128,
                "intermediate_size": 53248,
            },
            source=aiconfigurator("meta-llama/Meta-Llama-3.1-405B"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="llama-3.3-70b",
            hf_id="meta-llama/Llama-3.3-70B-Instruct",
            config=_70B,
            source=f"github kvcache-ai/kvcache-blog@d455485bd1c5 (model data); {LITGPT}",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="llama-2-7b",
            hf_id="meta-llama/Llama-2-7b-hf",
            same_shape=("meta-llama/Llama-2-7b-chat-hf",),
            config={
                "model_type": "llama",
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "intermediate_size": 11008,
                "vocab_size": 32000,
                "max_position_embeddings": 4096,
                "tie_word_embeddings": False,
                "torch_dtype": "float16",
            },
            source="github inference-sim/inference-sim@f90a1e3a6787 model_configs/llama-2-7b-hf/config.json",
            confidence=Confidence.CONFIG,
        ),
    ),
)
