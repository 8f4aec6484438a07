"""Mamba-1 and Mamba-2 without any attention: a mixer in every layer and no MLP."""

from kvcache.specs import cdiv
from models_configs.hf_config import HFConfig
from models_configs.mamba import Mamba1
from models_configs.mamba2 import Mamba2
from models_configs.model import Layer
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["MAMBA_1", "MAMBA_2"]

_MODULE = "backbone.layers.1.mixer.in_proj"


def _stack_of(config: HFConfig, mixer: AttentionPart) -> Stack:
    layer = Layer(mixers=(mixer,), mlps=(), norm_parameters=config.integer("hidden_size"))
    return Stack((layer,) * config.integer("num_hidden_layers"))


def _stack_1(config: HFConfig) -> Stack:
    """Falcon's norms over dt, B and C have no weights."""
    hidden_size = config.integer("hidden_size")
    # Falcon's `expand` contradicts its width, and counts only where that is not given
    given = config.has("intermediate_size")
    inner_size = config.integer("intermediate_size") if given else config.integer("expand", default=2) * hidden_size
    mixer = Mamba1(
        hidden_size=hidden_size,
        inner_size=inner_size,
        d_state=config.integer("state_size"),
        d_conv=config.integer("conv_kernel"),
        dt_rank=_dt_rank(config, hidden_size),
        has_conv_bias=config.flag("use_conv_bias", default=True),
        has_proj_bias=config.flag("use_bias", default=False),
        weight_format=config.weight_format(_MODULE),
    )
    return _stack_of(config, mixer)


def _dt_rank(config: HFConfig, hidden_size: int) -> int:
    is_auto = not config.has("time_step_rank") or config.fields["time_step_rank"] == "auto"
    return cdiv(hidden_size, 16) if is_auto else config.integer("time_step_rank")


def _stack_2(config: HFConfig) -> Stack:
    mixer = Mamba2(
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("num_heads"),
        head_size=config.integer("head_dim"),
        num_groups=config.integer("n_groups"),
        d_state=config.integer("state_size"),
        d_conv=config.integer("conv_kernel"),
        has_conv_bias=config.flag("use_conv_bias", default=True),
        has_proj_bias=config.flag("use_bias", default=False),
        weight_format=config.weight_format(_MODULE),
    )
    return _stack_of(config, mixer)


_BENCHMARK = (
    "a copy on GitHub of NX-AI's benchmark of mLSTM inference (`hf_model_benchmark`), whose dictionary is that of the"
    " config.json"
)

# No configuration says how long a context may be, and nothing in the models limits it: vLLM 0.32 takes
# 2048 and whatever longer --max-model-len one gives. Here it is what the authors say to have tried.

MAMBA_1 = Family(
    model_types=("falcon_mamba", "mamba"),
    stack=_stack_1,
    # generation up to 130 thousand tokens (TII, "Welcome FalconMamba", August 2024); recalled
    max_model_len=131072,
    published=(
        Published(
            name="falcon-mamba-7b",
            hf_id="tiiuae/falcon-mamba-7b",
            same_shape=("tiiuae/falcon-mamba-7b-instruct",),
            config={
                "model_type": "falcon_mamba",
                "num_hidden_layers": 64,
                "hidden_size": 4096,
                "intermediate_size": 8192,
                "state_size": 16,
                "conv_kernel": 4,
                "time_step_rank": 256,
                "use_conv_bias": True,
                "use_bias": False,
                "vocab_size": 65024,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            source=_BENCHMARK,
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)

MAMBA_2 = Family(
    model_types=("mamba2",),
    stack=_stack_2,
    ties_embeddings=False,
    # retrieval from up to 256 thousand tokens (Mistral AI, "Codestral Mamba", July 2024); recalled
    max_model_len=262144,
    published=(
        Published(
            name="mamba2-2.7b",
            hf_id="state-spaces/mamba2-2.7b",
            config={
                "model_type": "mamba2",
                "num_hidden_layers": 64,
                "hidden_size": 2560,
                "num_heads": 80,
                "head_dim": 64,
                "n_groups": 1,
                "state_size": 128,
                "conv_kernel": 4,
                "vocab_size": 50288,
                "tie_word_embeddings": True,
            },
            source=(
                "its config.json (d_model 2560, n_layer 64, vocab_size 50277 padded to a multiple of 16), with the"
                " defaults of github state-spaces/mamba mamba_ssm/modules/mamba2.py"
            ),
            confidence=Confidence.RECALLED,
        ),
        Published(
            name="mamba-codestral-7b",
            hf_id="mistralai/Mamba-Codestral-7B-v0.1",
            config={
                "model_type": "mamba2",
                "num_hidden_layers": 64,
                "hidden_size": 4096,
                "num_heads": 128,
                "head_dim": 64,
                "n_groups": 8,
                "state_size": 128,
                "conv_kernel": 4,
                "vocab_size": 32768,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            },
            source=_BENCHMARK,
            confidence=Confidence.TRANSCRIBED,
        ),
    ),
)
