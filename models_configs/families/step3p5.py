"""Step-3.5-Flash: full attention, then three sliding-window layers with more query heads; gates and experts."""

from dataclasses import replace

from models_configs.attention import FullAttention, Heads, SlidingWindowAttention
from models_configs.families.common import (
    ATTENTION_MODULE,
    draft_layer_of,
    layer_of,
    read_dense_mlp,
    read_experts,
    stored_format,
)
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.parts import AttentionPart
from models_configs.published import Confidence, Family, Published, Stack

__all__ = ["FAMILY"]


def _heads(config: HFConfig) -> Heads:
    num_heads, head_size = config.integer("num_attention_heads"), config.integer("head_dim")
    has_gate = config.flag("use_head_wise_attn_gate", default=False)
    return Heads(
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_attention_groups"),
        head_size=head_size,
        has_qkv_bias=config.flag("attention_bias", default=False),
        num_norm_parameters=2 * head_size,
        gate_size=num_heads if has_gate else 0,
        weight_format=stored_format(config, ATTENTION_MODULE),
    )


def _sliding_heads(config: HFConfig, full: Heads) -> Heads:
    """Those that `attention_other_setting` gives, if it is there: fields like the ones outside it."""
    other = config.section("attention_other_setting")
    if not other or other.get("attention_type") != "sliding_attention":
        return full
    return _heads(replace(config, fields={**config.fields, **other}))


def _attention(config: HFConfig, num_drafts: int) -> list[AttentionPart]:
    """That of each layer, and of those that draft: `layer_types` may tell of them too, or else they slide."""
    heads = _heads(config)
    full = FullAttention(heads)
    sliding = SlidingWindowAttention(_sliding_heads(config, heads), config.integer("sliding_window"))
    types, num_layers = config.texts("layer_types"), config.integer("num_hidden_layers") + num_drafts
    if len(types) == num_layers - num_drafts:
        types = types + ["sliding_attention"] * num_drafts
    whole = replace(config, fields={**config.fields, "layer_types": types, "num_hidden_layers": num_layers})
    return whole.layer_types({"full_attention": full, "sliding_attention": sliding})


def _sparse_layers(config: HFConfig) -> set[int]:
    """Indices of the layers with experts: a list, or a text with commas; all but the first if there is neither."""
    given = config.fields.get("moe_layers_enum")
    if given is None:
        return set(range(1, config.integer("num_hidden_layers")))
    items = given.split(",") if isinstance(given, str) else given
    try:
        return {int(item) for item in items}  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigFieldError(f"moe_layers_enum of {config.origin} must be whole numbers, got {given!r}") from None


def _stack(config: HFConfig) -> Stack:
    num_layers, num_drafts = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", default=0)
    attention, sparse = _attention(config, num_drafts), _sparse_layers(config)
    dense = read_dense_mlp(config)
    experts = read_experts(
        config, count="moe_num_experts", top_k="moe_top_k", shared_expert_size=config.integer("share_expert_dim")
    )
    mlps = [experts if index in sparse else dense for index in range(num_layers + num_drafts)]
    parts = list(zip(attention, mlps, strict=True))
    return Stack(
        tuple(layer_of(config, mixer, mlp) for mixer, mlp in parts[:num_layers]),
        draft_layers=tuple(draft_layer_of(config, mixer, mlp) for mixer, mlp in parts[num_layers:]),
    )


FAMILY = Family(
    model_types=("step3p5",),
    stack=_stack,
    ties_embeddings=False,
    published=(
        Published(
            name="step-3.5-flash",
            hf_id="stepfun-ai/Step-3.5-Flash",
            config={
                "model_type": "step3p5",
                "num_hidden_layers": 45,
                "hidden_size": 4096,
                "num_attention_heads": 64,
                "num_attention_groups": 8,
                "head_dim": 128,
                "attention_other_setting": {
                    "attention_type": "sliding_attention",
                    "num_attention_heads": 96,
                    "num_attention_groups": 8,
                    "head_dim": 128,
                },
                "use_head_wise_attn_gate": True,
                "sliding_window": 512,
                "layer_types": [*(["full_attention"] + ["sliding_attention"] * 3) * 11, "full_attention"],
                "intermediate_size": 11264,
                "moe_layers_enum": list(range(3, 45)),
                "moe_intermediate_size": 1280,
                "moe_num_experts": 288,
                "moe_top_k": 8,
                "share_expert_dim": 1280,
                "num_nextn_predict_layers": 3,
                "vocab_size": 128896,
                "max_position_embeddings": 262144,
                "torch_dtype": "bfloat16",
            },
            source="github NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/models/stepfun/configuration_step35.py",
            confidence=Confidence.TRANSCRIBED,
            exceptions={
                "vocab_size": f"as in Step-3.7-Flash: {Confidence.TRANSCRIBED}",
                "sliding_window": f"as in Step-3.7-Flash: {Confidence.TRANSCRIBED}",
                "layer_types": f"as in Step-3.7-Flash: {Confidence.TRANSCRIBED}",
                "attention_other_setting": f"{Confidence.RECALLED}",
            },
        ),
    ),
)
