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
    "llama-3.1-8b-fp8": (8_030_261_248, 8_030_261_248),
    "llama-3.1-70b": (70_553_706_496, 70_553_706_496),
    "llama-3.1-70b-fp8": (70_553_706_496, 70_553_706_496),
    "llama-4-scout": (107_769_861_120, 17_172_894_720),
    "llama-4-maverick": (400_711_848_960, 17_184_691_200),
    "jamba-1.7-mini": (51_570_323_328, 12_110_311_296),
    "jamba-1.7-large": (398_555_145_696, 94_149_338_592),
    "jamba-reasoning-3b": (3_029_337_472, 3_029_337_472),
    "bamba-9b-v2": (9_780_235_392, 9_780_235_392),
    "nemotron-h-8b": (8_100_852_736, 8_100_852_736),
    "nemotron-h-47b": (46_791_554_816, 46_791_554_816),
    "nemotron-h-56b": (56_324_350_464, 56_324_350_464),
    "nemotron-nano-9b-v2": (8_888_227_328, 8_888_227_328),
    "nemotron-3-nano": (31_577_937_344, 3_580_073_408),
    "nemotron-3-super": (120_668_687_360, 12_770_216_960),
    "nemotron-3-ultra": (549_308_968_960, 56_058_818_560),
    "falcon-h1-0.5b": (521_411_104, 521_411_104),
    "falcon-h1-1.5b": (1_554_789_760, 1_554_789_760),
    "falcon-h1-3b": (3_149_261_312, 3_149_261_312),
    "falcon-h1-7b": (7_585_513_568, 7_585_513_568),
    "falcon-h1-34b": (33_642_516_224, 33_642_516_224),
    "granite-4.0-h-small": (32_207_337_984, 8_803_121_664),
    "granite-4.0-h-tiny": (6_939_037_248, 1_465_470_528),
    "granite-4.0-h-micro": (3_191_396_096, 3_191_396_096),
    "zamba2-7b": (7_356_749_648, 7_356_749_648),
    "falcon-mamba-7b": (7_272_665_088, 7_272_665_088),
    "mamba2-2.7b": (2_702_599_680, 2_702_599_680),
    "mamba-codestral-7b": (7_285_403_648, 7_285_403_648),
    "deepseek-r1": (671_026_404_352, 37_552_282_624),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
    "deepseek-v3.2": (671_877_929_216, 38_403_807_488),
    "kimi-k2": (1_026_408_209_408, 32_861_477_888),
    "kimi-k2.5": (1_026_408_209_408, 32_861_477_888),
    "kimi-k2.5-nvfp4": (1_026_408_209_408, 32_861_477_888),
    "kimi-linear-48b-a3b": (49_122_675_072, 3_484_453_248),
    # transformers 5.19 has no class for it: summed from the shapes in vLLM 0.32 (models/kimi_k3)
    "kimi-k3": (2_779_484_393_568, 105_363_935_328),
    "lfm2-1.2b": (1_170_340_608, 1_170_340_608),
    "minimax-text-01": (456_089_655_296, 48_403_306_496),
    "minimax-m1-80k": (456_089_655_296, 48_403_306_496),
    "qwen3-next-80b-a3b": (79_674_391_296, 3_874_929_408),
    "qwen3.5-4b": (4_205_751_296, 4_205_751_296),
    "qwen3.5-9b": (8_953_803_264, 8_953_803_264),
    "qwen3.5-27b": (26_895_998_464, 26_895_998_464),
    "qwen3.5-35b-a3b": (34_660_610_688, 3_454_988_928),
    "qwen3.5-35b-a3b-fp8": (34_660_610_688, 3_454_988_928),
    "qwen3.5-122b-a10b": (122_111_526_912, 9_771_288_576),
    "qwen3.5-397b-a17b": (396_346_350_336, 17_349_040_896),
    "qwen3.6-27b": (26_895_998_464, 26_895_998_464),
    "qwen3.6-27b-fp8": (26_895_998_464, 26_895_998_464),
    "qwen3.6-35b-a3b": (34_660_610_688, 3_454_988_928),
    "qwen3.6-35b-a3b-fp8": (34_660_610_688, 3_454_988_928),
    "qwen3.8-27b": (26_895_998_464, 26_895_998_464),
    "qwen3.8-27b-fp8": (26_895_998_464, 26_895_998_464),
    "command-r7b": (8_028_033_024, 8_028_033_024),
    "command-a": (111_057_580_032, 111_057_580_032),
    "exaone-4.0-32b": (32_003_216_384, 32_003_216_384),
    "gemma-2-2b": (2_614_341_888, 2_614_341_888),
    "gemma-2-9b": (9_241_705_984, 9_241_705_984),
    "gemma-2-27b": (27_227_128_320, 27_227_128_320),
    "gemma-3n-e2b": (4_435_182_688, 4_435_182_688),
    "gemma-3n-e4b": (6_835_235_568, 6_835_235_568),
    "gemma-4-e2b": (4_628_569_344, 4_628_569_344),
    "gemma-4-e4b": (7_463_013_376, 7_463_013_376),
    "gemma-4-26b-a4b": (25_233_141_760, 3_822_530_560),
    "gemma-4-31b": (30_697_345_280, 30_697_345_280),
    "glm-4.5": (352_797_814_784, 33_632_251_904),
    "glm-4.6": (352_797_814_784, 33_632_251_904),
    "hunyuan-a13b": (80_393_183_232, 12_747_448_320),
    "llama-2-7b": (6_738_415_616, 6_738_415_616),
    "llama-3.1-405b": (405_853_388_800, 405_853_388_800),
    "llama-3.3-70b": (70_553_706_496, 70_553_706_496),
    "mimo-v2-flash": (308_778_768_832, 15_445_924_288),
    "minimax-m2": (228_689_748_992, 11_030_537_216),
    "minimax-m2.5-nvfp4": (228_689_748_992, 11_030_537_216),
    "mistral-7b-v0.1": (7_241_732_096, 7_241_732_096),
    "ministral-8b": (8_019_808_256, 8_019_808_256),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "olmo-3-7b": (7_298_011_136, 7_298_011_136),
    "olmo-3.1-32b": (32_233_522_176, 32_233_522_176),
    "phi-3-mini-4k": (3_821_079_552, 3_821_079_552),
    "phi-3-medium-4k": (13_960_238_080, 13_960_238_080),
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512),
    "qwen2.5-72b": (72_706_203_648, 72_706_203_648),
    "qwen3-8b": (8_190_735_360, 8_190_735_360),
    "qwen3-32b": (32_762_123_264, 32_762_123_264),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "qwen3-235b-a22b-fp8": (235_093_634_560, 22_190_763_520),
    "smollm3-3b": (3_075_098_624, 3_075_098_624),
    # transformers 5.19 has no class for it: summed from the shapes in vLLM 0.32 (models/step3p5.py)
    "step-3.5-flash": (196_956_118_272, 11_987_311_872),
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
        UnknownModelError, match=r'unknown model "0"; known: .*, gemma-3-1b, .*; or a path to a config.json$'
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


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b-fp8"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b-fp8"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b-fp8"),
    ],
)
def test_a_repository_leads_to_its_entry(repository: str, name: str) -> None:
    assert find_model(repository).name == name
