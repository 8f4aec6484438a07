"""Nemotron-H: each Mamba-2 mixer, attention, MLP and set of experts is a layer of its own; MLPs have no gate."""

from dataclasses import replace

from kvcache.specs import DTYPE_BYTES
from models_configs.attention import FullAttention, Heads
from models_configs.families.sources import aiconfigurator
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.mamba2 import Mamba2
from models_configs.mlp import DenseMLP, MixtureOfExperts
from models_configs.model import Layer
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]

_LETTERS = {
    "mamba": "M",
    "attention": "*",
    "mlp": "-",
    "moe": "E",
    # the names that transformers 5 writes
    "linear_attention": "M",
    "full_attention": "*",
}


def _mamba(config: HFConfig, module: str) -> Layer:
    mixer = Mamba2(
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("mamba_num_heads"),
        head_size=config.integer("mamba_head_dim"),  # `expand` is nominal: heads of another size may make another width
        num_groups=config.integer("n_groups"),
        d_state=config.integer("ssm_state_size"),
        d_conv=config.integer("conv_kernel"),
        has_conv_bias=config.flag("use_conv_bias", default=True),
        has_proj_bias=config.flag("use_bias", default=False),
        ssm_dtype=_state_dtype(config),
        weight_format=config.weight_format(f"{module}.in_proj"),
    )
    return Layer(mixers=(mixer,), mlps=(), norm_parameters=config.integer("hidden_size"))


def _state_dtype(config: HFConfig) -> str:
    """The family has its own default, whatever the model's dtype (vLLM 0.32, models/config.py)."""
    dtype = config.text("mamba_ssm_cache_dtype", default="float32")
    if dtype not in DTYPE_BYTES:
        raise ConfigFieldError(f"unknown mamba_ssm_cache_dtype of {config.origin}: {dtype}")
    return dtype


def _attention(config: HFConfig, module: str) -> Layer:
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    heads = Heads(
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", default=num_heads),
        head_size=config.integer("attention_head_dim" if config.has("attention_head_dim") else "head_dim"),
        weight_format=config.weight_format(f"{module}.q_proj"),
    )
    return Layer(mixers=(FullAttention(heads),), mlps=(), norm_parameters=hidden_size)


def _mlp(config: HFConfig, module: str) -> Layer:
    hidden_size, width = config.integer("hidden_size"), config.integer("intermediate_size")
    mlp = DenseMLP(
        hidden_size=hidden_size,
        intermediate_size=width,
        is_gated=False,
        num_bias_parameters=(hidden_size + width) * config.flag("mlp_bias", default=False),
        weight_format=config.weight_format(f"{module}.up_proj"),
    )
    return Layer(mixers=(), mlps=(mlp,), norm_parameters=hidden_size)


def _experts(config: HFConfig, module: str) -> Layer:
    num_shared = config.integer("n_shared_experts", default=1)
    experts = MixtureOfExperts(
        hidden_size=config.integer("hidden_size"),
        expert_size=config.integer("moe_intermediate_size"),
        num_experts=config.integer("n_routed_experts"),
        top_k=config.integer("num_experts_per_tok"),
        shared_expert_size=num_shared * config.integer("moe_shared_expert_intermediate_size") if num_shared else 0,
        is_gated=False,
        expert_hidden_size=config.integer("moe_latent_size") if config.has("moe_latent_size") else None,
        expert_format=config.weight_format(f"{module}.experts.1.up_proj"),
        shared_format=config.weight_format(f"{module}.shared_experts.up_proj"),
    )
    return Layer(mixers=(), mlps=(experts,), norm_parameters=config.integer("hidden_size"))


_READERS = {"M": _mamba, "*": _attention, "-": _mlp, "E": _experts}


def _pattern(config: HFConfig, as_text: str, as_list: str) -> str:
    """A letter for each layer, which older configurations have in one text and newer ones in a list of words."""
    if config.has(as_text) or not config.has(as_list):
        letters = list(config.text(as_text))
    else:
        letters = [_LETTERS.get(word, word) for word in config.texts(as_list)]
    if not letters:
        raise ConfigFieldError(f"{as_text} of {config.origin} is empty")
    if unknown := sorted(set(letters) - set(_READERS)):
        raise ConfigFieldError(f"unknown kinds of layers of {config.origin}: {', '.join(unknown)}")
    return "".join(letters)


def _layers(config: HFConfig) -> tuple[Layer, ...]:
    pattern = _pattern(config, "hybrid_override_pattern", "layers_block_type")
    if config.has("num_hidden_layers") and len(pattern) != config.integer("num_hidden_layers"):
        raise ConfigFieldError(
            f"{config.origin} has {config.integer('num_hidden_layers')} layers but a pattern of {len(pattern)}"
        )
    # quantized checkpoints exempt single layers
    return tuple(_READERS[kind](config, f"backbone.layers.{index}.mixer") for index, kind in enumerate(pattern))


def _draft_layers(config: HFConfig) -> tuple[Layer, ...]:
    """For each prediction the layers of another pattern, with what joins the last token to the hidden state."""
    num_predictions = config.integer("num_nextn_predict_layers") if config.has("num_nextn_predict_layers") else 0
    if num_predictions == 0:
        return ()
    hidden_size = config.integer("hidden_size")
    pattern = _pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    first, *others = (_READERS[kind](config, f"mtp.layers.{index}.mixer") for index, kind in enumerate(pattern))
    # two norms and a matrix before them, a norm behind
    joining = 3 * hidden_size + 2 * hidden_size**2
    return (replace(first, norm_parameters=first.norm_parameters + joining), *others) * num_predictions


def _stack(config: HFConfig) -> Stack:
    return Stack(_layers(config), draft_layers=_draft_layers(config))


_MEGATRON_BRIDGE = "github NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes/nemotronh/h100"

_NEMOTRON_H = {
    "model_type": "nemotron_h",
    "num_key_value_heads": 8,
    "conv_kernel": 4,
    "n_groups": 8,
    "mamba_head_dim": 64,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_NEMOTRON_H_BASE = {**_NEMOTRON_H, "attention_head_dim": 128, "max_position_embeddings": 8192}

_NEMOTRON_3 = {
    **_NEMOTRON_H,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "ssm_state_size": 128,
    "mamba_ssm_cache_dtype": "float32",
    "n_shared_experts": 1,
    "use_conv_bias": True,
    "use_bias": False,
    "max_position_embeddings": 262144,
}

FAMILY = Family(
    model_types=("nemotron_h",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="nemotron-h-8b",
            hf_id="nvidia/Nemotron-H-8B-Base-8K",
            config={
                **_NEMOTRON_H_BASE,
                "num_hidden_layers": 52,
                "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "intermediate_size": 21504,
                "mamba_num_heads": 128,
                "ssm_state_size": 128,
            },
            source=f"{_MEGATRON_BRIDGE}/nemotronh.py, docs/models/nemotron/nemotronh.md",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="nemotron-h-47b",
            hf_id="nvidia/Nemotron-H-47B-Base-8K",
            config={
                **_NEMOTRON_H_BASE,
                "num_hidden_layers": 98,
                # pruned from the 56b, hence irregular
                "hybrid_override_pattern": (
                    "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
                ),
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "intermediate_size": 30720,
                "mamba_num_heads": 256,
                "ssm_state_size": 256,
            },
            source=f"{_MEGATRON_BRIDGE}/nemotronh.py",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="nemotron-h-56b",
            hf_id="nvidia/Nemotron-H-56B-Base-8K",
            config={
                **_NEMOTRON_H_BASE,
                "num_hidden_layers": 118,
                "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "intermediate_size": 32768,
                "mlp_bias": False,
                "mamba_num_heads": 256,
                "ssm_state_size": 256,
                "use_conv_bias": True,
                "use_bias": False,
            },
            source=aiconfigurator("nvidia/Nemotron-H-56B-Base-8K"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="nemotron-nano-9b-v2",
            hf_id="nvidia/NVIDIA-Nemotron-Nano-9B-v2",
            config={
                **_NEMOTRON_H,
                "num_hidden_layers": 56,
                "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
                "hidden_size": 4480,
                "num_attention_heads": 40,
                "head_dim": 128,
                "intermediate_size": 15680,
                "mamba_num_heads": 128,
                "mamba_head_dim": 80,
                "ssm_state_size": 128,
                "max_position_embeddings": 131072,
            },
            source=f"{_MEGATRON_BRIDGE}/nemotron_nano_v2.py; geometry in a test of AgileRL on GitHub",
            confidence=Confidence.TRANSCRIBED,
        ),
        Published(
            name="nemotron-3-nano",
            hf_id="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            config={
                **_NEMOTRON_3,
                "num_hidden_layers": 52,
                "hybrid_override_pattern": "MEMEM*E" * 5 + "MEMEMEM*EMEMEMEME",
                "hidden_size": 2688,
                "num_attention_heads": 32,
                "mamba_num_heads": 64,
                "moe_intermediate_size": 1856,
                "moe_shared_expert_intermediate_size": 3712,
                "n_routed_experts": 128,
                "num_experts_per_tok": 6,
            },
            source=aiconfigurator("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
            confidence=Confidence.CONFIG,
        ),
        Published(
            name="nemotron-3-super",
            hf_id="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
            config={
                **_NEMOTRON_3,
                "num_hidden_layers": 88,
                "hybrid_override_pattern": (
                    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
                ),
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "mamba_num_heads": 128,
                "moe_intermediate_size": 2688,
                "moe_latent_size": 1024,
                "moe_shared_expert_intermediate_size": 5376,
                "n_routed_experts": 512,
                "num_experts_per_tok": 22,
                "num_nextn_predict_layers": 1,
                "mtp_hybrid_override_pattern": "*E",
                "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"},
            },
            source=aiconfigurator("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8"),
            confidence=Confidence.CONFIG,
            exceptions={
                "quantization_config": "hf_quant_config.json beside it, which does not list the modules that are exempt"
            },
        ),
        Published(
            name="nemotron-3-ultra",
            hf_id="nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
            config={
                **_NEMOTRON_3,
                "layers_block_type": [
                    {"M": "mamba", "*": "attention", "E": "moe"}[letter]
                    for letter in "MEMEMEM*" + "EMEMEM*EMEMEMEM*EMEMEMEM*" * 3 + "EMEMEM*EMEMEMEM*EMEMEMEME"
                ],
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "mamba_num_heads": 256,
                "moe_intermediate_size": 5120,
                "moe_latent_size": 2048,
                "moe_shared_expert_intermediate_size": 10240,
                "n_routed_experts": 512,
                "num_experts_per_tok": 22,
                "num_nextn_predict_layers": 1,
                "mtp_layers_block_type": ["attention", "moe"],
            },
            source=aiconfigurator("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
            confidence=Confidence.CONFIG,
        ),
    ),
)
