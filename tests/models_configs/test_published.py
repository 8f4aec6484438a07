"""Reading configurations: what is wrong with one is said with the field's name."""

from dataclasses import replace

import pytest

from models_configs.families import gpt_oss, llama
from models_configs.hf_config import ConfigFieldError, HFConfig
from models_configs.published import Published

LLAMA = llama.FAMILY.published[0]


def with_fields(published: Published, **fields: object) -> Published:
    return replace(published, config={**published.config, **fields})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ConfigFieldError, match=r"configuration of meta-llama/Llama-3.1-8B lacks intermediate_size"):
        llama.FAMILY.model(with_fields(LLAMA, intermediate_size=None))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"hidden_size": "4096"}, "hidden_size .* must be a whole number, got '4096'"),
        ({"attention_bias": 0}, "attention_bias .* must be true or false, got 0"),
        ({"torch_dtype": 16}, "torch_dtype .* must be text, got 16"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigFieldError, match=complaint):
        llama.FAMILY.model(with_fields(LLAMA, **fields))


def test_unwritten_fields_take_their_usual_values() -> None:
    """Without KV heads or a head size there are as many as query heads, and they share the hidden size."""
    model = llama.FAMILY.model(with_fields(LLAMA, num_key_value_heads=None, torch_dtype=None))
    (page_bytes,) = {spec.page_bytes for spec in model.kv_cache_specs()}
    assert page_bytes == 16 * 32 * 2 * 128 * 2


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"llama-3.1-8b: unknown dtype 'float12'"):
        llama.FAMILY.model(with_fields(LLAMA, torch_dtype="float12"))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"layer_types": ["sliding_attention"]}, "has 24 layers but 1 layer_types"),
        ({"layer_types": ["global"] * 24}, "unknown layer_types of openai/gpt-oss-20b: global"),
        ({"layer_types": "full_attention"}, "layer_types .* must be a list of texts"),
        ({"quantization_config": "mxfp4"}, "quantization_config .* must be an object"),
    ],
)
def test_a_layer_pattern_that_makes_no_sense_is_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigFieldError, match=complaint):
        gpt_oss.FAMILY.model(with_fields(gpt_oss.FAMILY.published[0], **fields))


def test_unquantized_gpt_oss_weighs_two_bytes_a_weight() -> None:
    model = gpt_oss.FAMILY.model(with_fields(gpt_oss.FAMILY.published[0], quantization_config=None))
    assert model.weight_bytes() == 2 * model.num_parameters
    assert model.kernel_padding_bytes() == 0


def test_a_nested_object_may_be_absent() -> None:
    assert HFConfig({}, "nobody").section("quantization_config") == {}
