"""Falcon-H1: attention and Mamba-2 side by side in every layer; dense MLPs."""

from models_configs.attention import FullAttention
from models_configs.families.common import read_dense_mlp, read_heads
from models_configs.families.mamba_fields import read_mamba2
from models_configs.hf_config import HFConfig
from models_configs.model import Layer
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _stack(config: HFConfig) -> Stack:
    mamba = read_mamba2(
        config,
        inner_size=config.integer("mamba_d_ssm") if config.has("mamba_d_ssm") else None,
        has_norm=config.flag("mamba_rms_norm", default=False),
    )
    layer = Layer(
        # one norm before the two, one before the MLP
        mixers=(FullAttention(read_heads(config)), mamba),
        mlps=(read_dense_mlp(config, module="model.layers.1.feed_forward.down_proj"),),
        norm_parameters=2 * config.integer("hidden_size"),
    )
    return Stack((layer,) * config.integer("num_hidden_layers"))


_FALCON_H1 = {
    "model_type": "falcon_h1",
    "head_dim": 128,
    "mamba_d_conv": 4,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_rms_norm": False,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

FAMILY = Family(
    model_types=("falcon_h1",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="falcon-h1-0.5b",
            hf_id="tiiuae/Falcon-H1-0.5B-Instruct",
            same_shape=("tiiuae/Falcon-H1-0.5B-Base",),
            config={
                **_FALCON_H1,
                "num_hidden_layers": 36,
                "hidden_size": 1024,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "head_dim": 64,
                "intermediate_size": 2048,
                "mamba_d_ssm": 1536,
                "mamba_n_heads": 24,
                "mamba_d_head": 64,
                "mamba_d_state": 128,
                "vocab_size": 32784,
            },
            source="shapes of its caches in a test on GitHub",
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                # together they make the published 0.52 billion
                "num_attention_heads": Confidence.RECALLED,
                "intermediate_size": Confidence.RECALLED,
                "vocab_size": Confidence.RECALLED,
            },
        ),
        Published(
            name="falcon-h1-1.5b",
            hf_id="tiiuae/Falcon-H1-1.5B-Instruct",
            same_shape=("tiiuae/Falcon-H1-1.5B-Base",),
            config={
                **_FALCON_H1,
                "num_hidden_layers": 24,
                "hidden_size": 2048,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "intermediate_size": 4608,
                "mamba_d_ssm": 3072,
                "mamba_n_heads": 48,
                "mamba_d_head": 64,
                "vocab_size": 65537,
            },
            source="geometry in a test of AgileRL on GitHub; it makes the published 1.55 billion",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="falcon-h1-3b",
            hf_id="tiiuae/Falcon-H1-3B-Instruct",
            same_shape=("tiiuae/Falcon-H1-3B-Base",),
            config={
                **_FALCON_H1,
                "num_hidden_layers": 32,
                "hidden_size": 2560,
                "num_attention_heads": 10,
                "num_key_value_heads": 2,
                "intermediate_size": 6144,
                "mamba_d_ssm": 4096,
                "mamba_n_heads": 32,
                "mamba_d_head": 128,
                "vocab_size": 65537,
            },
            source="the MLP's width is the one that makes the published 3.15 billion",
            confidence=Confidence.RECALLED,
        ),
        Published(
            name="falcon-h1-7b",
            hf_id="tiiuae/Falcon-H1-7B-Instruct",
            same_shape=("tiiuae/Falcon-H1-7B-Base",),
            config={
                **_FALCON_H1,
                "num_hidden_layers": 44,
                "hidden_size": 3072,
                "num_attention_heads": 12,
                "num_key_value_heads": 2,
                "intermediate_size": 12288,
                "mamba_d_ssm": 3072,
                "mamba_n_heads": 24,
                "mamba_d_head": 128,
                "vocab_size": 130048,
            },
            source="config.json of mlx-community/Falcon-H1-7B-Instruct-4bit as two tests on GitHub quote it",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="falcon-h1-34b",
            hf_id="tiiuae/Falcon-H1-34B-Instruct",
            same_shape=("tiiuae/Falcon-H1-34B-Base",),
            config={
                **_FALCON_H1,
                "num_hidden_layers": 72,
                "hidden_size": 5120,
                "num_attention_heads": 20,
                "num_key_value_heads": 4,
                "attention_bias": False,
                "intermediate_size": 21504,
                "mamba_d_ssm": 4096,
                "mamba_n_heads": 32,
                "mamba_d_head": 128,
                "mamba_n_groups": 2,
                "mamba_rms_norm": True,
                "mamba_conv_bias": True,
                "mamba_proj_bias": False,
                "vocab_size": 261120,
            },
            source=(
                "github Sahil170595/Chimeraforge@01db3697504580"
                " tests/fixtures/hybrid_configs/tiiuae_Falcon-H1-34B-Instruct.json"
            ),
            confidence=Confidence.CONFIG,
        ),
    ),
)
