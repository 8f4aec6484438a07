"""Bamba: a few layers of attention among Mamba-2; dense MLPs."""

from models_configs.attention import FullAttention
from models_configs.families.common import layer_of, layers_of, read_dense_mlp, read_heads
from models_configs.families.mamba_fields import read_mamba2
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.model import Layer
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    attention, mamba = FullAttention(read_heads(config)), read_mamba2(config)
    mlp = read_dense_mlp(config, module="model.layers.1.feed_forward.down_proj")
    attends = _attention_indices(config)

    def layer(index: int) -> Layer:
        return layer_of(config, attention if index in attends else mamba, mlp)

    return Stack(layers_of(config, layer))


def _attention_indices(config: HFConfig) -> frozenset[int]:
    """Without the field no layer attends."""
    indices = config.integers("attn_layer_indices") if config.has("attn_layer_indices") else []
    if beyond := [index for index in indices if not 0 <= index < config.integer("num_hidden_layers")]:
        raise ConfigFieldError(f"attn_layer_indices of {config.origin}: there is no layer {beyond[0]}")
    return frozenset(indices)


FAMILY = Family(
    model_types=("bamba",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="bamba-9b-v2",
            hf_id="ibm-ai-platform/Bamba-9B-v2",
            same_shape=("ibm-ai-platform/Bamba-9B-v1", "ibm-ai-platform/Bamba-9B"),
            config={
                "model_type": "bamba",
                "num_hidden_layers": 32,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "attn_layer_indices": [9, 18, 27],
                "mamba_n_heads": 128,
                "mamba_d_head": 64,
                "mamba_n_groups": 1,
                "mamba_d_state": 128,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
                "mamba_conv_bias": True,
                "mamba_proj_bias": False,
                "vocab_size": 128256,
                "max_position_embeddings": 262144,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            source=(
                "transformers 5.24 BambaConfig (made for ibm-fms/Bamba-9.8b-2.2T-hf) and its conversion script,"
                " convert_mamba_ssm_checkpoint.py; the attention layers as two test suites on GitHub quote them"
            ),
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                # with it the total is the published 9.78 billion; the class default 128000 misses it
                "vocab_size": Confidence.RECALLED,
                "max_position_embeddings": Confidence.RECALLED,
            },
        ),
    ),
)
