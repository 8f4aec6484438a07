"""Models by name, and their totals against published counts."""

import pytest

import models_configs
from models_configs import UnknownModelError, find_model, list_models
from models_configs.families import FAMILIES

# Weights and active weights, counted by instantiating each published config.json with transformers 5.19
# on a device without storage (text model only for multimodal ones, embeddings included). The published
# totals agree: 8.03, 70.6, 20.9, 116.8, 51.6, 398.6 billion ...
COUNTED = {
    "gemma-3-1b": (999_885_952, 999_885_952),
    "gemma-3-4b": (3_880_263_168, 3_880_263_168),
    "gemma-3-12b": (11_766_034_176, 11_766_034_176),
    "gemma-3-27b": (27_009_346_304, 27_009_346_304),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),
    "jamba-v0.1": (51_570_323_328, 12_110_311_296),
    "jamba-1.5-mini": (51_570_323_328, 12_110_311_296),
    "jamba-1.5-large": (398_555_145_696, 94_149_338_592),
    "llama-3.1-8b": (8_030_261_248, 8_030_261_248),
    "llama-3.1-70b": (70_553_706_496, 70_553_706_496),
    "llama-4-scout": (107_769_861_120, 17_172_894_720),
    "llama-4-maverick": (400_711_848_960, 17_184_691_200),
}


def test_every_model_has_the_weights_that_were_counted() -> None:
    assert {model.name: (model.num_parameters, model.num_active_parameters) for model in list_models()} == COUNTED


@pytest.mark.parametrize(
    "name", ["gemma-3-27b", "Gemma-3-27B", "google/gemma-3-27b-it", "GOOGLE/GEMMA-3-27B-PT", "gemma-3-27b-it"]
)
def test_a_model_answers_to_its_names_in_any_case(name: str) -> None:
    assert find_model(name).hf_id == "google/gemma-3-27b-it"


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownModelError) as error:
        find_model("gema-3-27b")
    assert str(error.value) == 'unknown model "gema-3-27b"; did you mean "gemma-3-27b"?'


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(
        UnknownModelError, match=r'unknown model "0"; known: gemma-3-1b, .*; or a path to a config.json$'
    ):
        find_model("0")


def test_no_two_models_share_a_name() -> None:
    names = [
        name.lower()
        for family in FAMILIES
        for published in family.published
        for name in (published.name, published.hf_id, *published.same_shape)
    ]
    assert len(names) == len(set(names))


def test_every_model_says_where_its_figures_come_from() -> None:
    assert [model.name for model in list_models() if not (model.source and model.confidence)] == []


def test_public_surface() -> None:
    assert sorted(models_configs.__all__) == models_configs.__all__
    assert all(hasattr(models_configs, name) for name in models_configs.__all__)
