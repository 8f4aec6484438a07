"""Families whose layers are mostly Mamba: what their configurations may say, and what is odd about them."""

import pytest

from kvcache.specs import MambaSpec
from models_configs import find_model
from models_configs.families import falcon_h1, granite_hybrid, jamba, mamba, nemotron_h, zamba2
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.published import Family, Published, Stack


def published(family: Family, name: str) -> Published:
    return next(published for published in family.published if published.name == name)


def stack(family: Family, name: str, **changes: object) -> Stack:
    """The layers of a published model if its configuration had these fields instead."""
    return family.stack(HFConfig.of({**published(family, name).config, **changes}, "it"))


def test_each_letter_of_nemotrons_pattern_is_a_layer() -> None:
    layers = find_model("nemotron-3-nano").layers
    letters = "MEMEM*E" * 5 + "MEMEMEM*EMEMEMEME"
    assert len(layers) == len(letters)
    for letter, layer in zip(letters, layers, strict=True):
        assert (len(layer.mixers), len(layer.mlps)) == ((0, 1) if letter == "E" else (1, 0))


def test_nemotron_says_its_layers_in_letters_or_in_words() -> None:
    words = ["mamba", "mlp", "attention", "moe"]
    experts = published(nemotron_h.FAMILY, "nemotron-3-nano").config
    changes = {**experts, **published(nemotron_h.FAMILY, "nemotron-h-8b").config, "num_hidden_layers": 4}
    del changes["hybrid_override_pattern"]
    in_words = nemotron_h.FAMILY.stack(HFConfig.of({**changes, "layers_block_type": words}, "it"))
    in_letters = nemotron_h.FAMILY.stack(HFConfig.of({**changes, "hybrid_override_pattern": "M-*E"}, "it"))
    assert in_words == in_letters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_override_pattern": "M-X|"}, "unknown kinds of layers of it: X, |"),
        ({"hybrid_override_pattern": ""}, "hybrid_override_pattern of it is empty"),
        ({"hybrid_override_pattern": "M-"}, "it has 52 layers but a pattern of 2"),
        ({"mamba_ssm_cache_dtype": "int3"}, "unknown mamba_ssm_cache_dtype of it: int3"),
    ],
)
def test_what_nemotron_cannot_mean_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigFieldError) as error:
        stack(nemotron_h.FAMILY, "nemotron-h-8b", **changes)
    assert str(error.value) == message


def test_nemotron_keeps_its_state_in_float32_and_others_in_the_models_dtype() -> None:
    dtypes = {}
    for name in ("nemotron-h-8b", "falcon-h1-7b", "granite-4.0-h-tiny"):
        dtypes[name] = next(spec.dtypes for spec in find_model(name).kv_cache_specs() if isinstance(spec, MambaSpec))
    assert dtypes == {
        "nemotron-h-8b": ("bfloat16", "float32"),
        "falcon-h1-7b": ("bfloat16", "bfloat16"),
        "granite-4.0-h-tiny": ("bfloat16", "bfloat16"),
    }


def test_nemotrons_layers_that_draft_come_with_speculative_tokens() -> None:
    """Attention and experts, which keep the KV of one more layer."""
    super_ = find_model("nemotron-3-super")
    assert [len(super_.kv_cache_specs(num_speculative_tokens=count)) for count in (0, 1)] == [48, 49]


def test_a_quantized_nemotron_may_exempt_single_layers() -> None:
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8"}
    changes = [
        {},
        {"quantization_config": quantization},
        {"quantization_config": {**quantization, "ignore": ["backbone.layers.1.mixer.up_proj"]}},
    ]
    plain, all_quantized, but_one = (stack(nemotron_h.FAMILY, "nemotron-h-8b", **change).layers for change in changes)
    assert but_one[1].weight_bytes(2) == plain[1].weight_bytes(2)
    assert but_one[3].weight_bytes(2) == all_quantized[3].weight_bytes(2) < 0.51 * plain[3].weight_bytes(2)


def test_a_single_expert_is_a_dense_mlp() -> None:
    assert list(find_model("jamba-reasoning-3b").routings()) == []


def test_jamba_without_a_period_is_refused() -> None:
    with pytest.raises(ConfigFieldError, match="attn_layer_period of it must be at least 1, got 0"):
        stack(jamba.FAMILY, "jamba-v0.1", attn_layer_period=0)


def test_granite_without_experts_keeps_the_shared_mlp() -> None:
    assert list(find_model("granite-4.0-h-micro").routings()) == []
    assert len(list(find_model("granite-4.0-h-tiny").routings())) == 40


def test_granites_layers_may_have_the_names_of_transformers_5() -> None:
    renamed = {"mamba": "linear_attention", "attention": "full_attention"}
    types = published(granite_hybrid.FAMILY, "granite-4.0-h-tiny").config["layer_types"]
    assert isinstance(types, list)
    changed = stack(granite_hybrid.FAMILY, "granite-4.0-h-tiny", layer_types=[renamed[kind] for kind in types])
    assert changed == stack(granite_hybrid.FAMILY, "granite-4.0-h-tiny")


@pytest.mark.parametrize("head_size", ["auto", None])
def test_the_size_of_mamba_heads_may_be_left_open(head_size: str | None) -> None:
    assert stack(falcon_h1.FAMILY, "falcon-h1-7b", mamba_d_head=head_size) == stack(falcon_h1.FAMILY, "falcon-h1-7b")


def test_mamba_heads_must_make_the_inner_size() -> None:
    with pytest.raises(ConfigFieldError, match="24 Mamba heads of 64, which do not make its inner size 3072"):
        stack(falcon_h1.FAMILY, "falcon-h1-7b", mamba_d_head=64)


def test_zamba_counts_the_two_shared_blocks_once() -> None:
    """A layer that uses one again brings a matrix of the hidden size, an adapter and a mixer."""
    model = find_model("zamba2-7b")
    hybrids = [layer for layer in model.layers if layer.mlps]
    first, second, *again = (layer.num_parameters() for layer in hybrids)
    assert len(hybrids) == 13
    assert first == second
    mixer = model.layers[0].num_parameters()
    assert set(again) == {mixer + 3584**2 + 128 * (3584 + 2 * 14336)}


def test_a_shared_block_is_split_like_any_other() -> None:
    """Attention reads 7168 numbers and writes 3584; each of q, k and v has an adapter of rank 128."""
    heads = stack(zamba2.FAMILY, "zamba2-7b", use_shared_attention_adapter=True).layers[6].mixers[0]
    assert heads.num_parameters(8) * 8 == heads.num_parameters()
    assert heads.num_parameters() == 3 * 7168 * 7168 + 7168 * 3584 + 3 * 2 * 128 * 7168


def test_zambas_unknown_kinds_of_layers_are_refused() -> None:
    with pytest.raises(ConfigFieldError, match="unknown layers_block_type of it: m, n"):
        stack(zamba2.FAMILY, "zamba2-7b", layers_block_type=["m", *["n"] * 80])
    with pytest.raises(ConfigFieldError, match="it has 81 layers but 1 layers_block_type"):
        stack(zamba2.FAMILY, "zamba2-7b", layers_block_type=["hybrid"])


def test_models_without_attention_name_the_context_that_was_assumed() -> None:
    codestral = find_model("mamba-codestral-7b")
    assert codestral.max_model_len == 262_144
    assert "max_position_embeddings 262144" in codestral.assumed


def test_the_width_of_mamba_1_follows_from_its_expansion_where_it_is_not_given() -> None:
    changed = stack(mamba.MAMBA_1, "falcon-mamba-7b", intermediate_size=None, expand=2, time_step_rank="auto")
    assert changed == stack(mamba.MAMBA_1, "falcon-mamba-7b")
