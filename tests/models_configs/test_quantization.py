"""`--quantization`: a model as it is stored then, and what it does not go with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from models_configs import Model, QuantizationError, find_model, list_models
from models_configs.catalogue import read_model
from models_configs.quantization import FP8_BLOCK, FP8_CHANNEL, INT4, MXFP4, NVFP4, WeightFormat, read_format
from models_configs.quantization_methods import METHODS, section_of

GIB = 1 << 30
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """The path of a small Llama's config.json, with these fields beside."""

    def write(**fields: object) -> str:
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **fields}))
        return str(tmp_path / "config.json")

    return write


def formats(model: Model) -> tuple[set[WeightFormat | None], set[WeightFormat | None]]:
    """Of what every token passes, and of the routed experts."""
    shared = {stored.weight_format for stored in model.shared_weights()}
    return shared, {routing.weight_format for routing in model.routings()}


@pytest.mark.parametrize(
    ("method", "weight_format"),
    [
        ("fp8", FP8_CHANNEL),
        ("fp8_per_block", FP8_BLOCK),
        ("modelopt", FP8_CHANNEL),
        ("modelopt_fp4", NVFP4),
        ("awq", INT4),
        ("gptq", INT4),
        ("auto-round", INT4),
    ],
)
def test_a_method_stores_all_matrices_in_its_format(method: str, weight_format: WeightFormat) -> None:
    """Of attention, MLPs and experts; routers and norms stay."""
    assert formats(find_model("mixtral-8x7b", method)) == ({None, weight_format}, {weight_format})


def test_mxfp4_stores_experts_only() -> None:
    assert formats(find_model("mixtral-8x7b", "mxfp4")) == ({None}, {MXFP4})


def test_mxfp4_does_not_take_shared_experts_for_routed_ones() -> None:
    """Whatever their family calls them: granite, Hunyuan, MiniMax-01, Kimi-Linear, GLM ..."""
    plain = [model for model in list_models() if formats(model) == ({None}, {None})]
    assert len(plain) > 15
    assert [model.name for model in plain if formats(find_model(model.name, "mxfp4")) != ({None}, {MXFP4})] == []


def test_embeddings_and_head_stay_as_they_are() -> None:
    """Eight bits, and four bytes of scale for each 4,096 of them, for the matrices; two bytes for all else."""
    plain, quantized = find_model("llama-3.1-8b"), find_model("llama-3.1-8b", "fp8")
    matrices = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    assert plain.weight_bytes() - quantized.weight_bytes() == matrices - matrices // 1024


# 'Model loading took ... GiB' of vLLM, one line for each rank


@pytest.mark.parametrize(
    ("name", "method", "tensor_parallel", "loaded_gib"),
    [
        ("llama-3.3-70b", "fp8", 2, 33.88),  # RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic, a scale for each row
        ("llama-3.1-70b", "fp8", 1, 67.7229),  # neuralmagic's w8a8: integers, as many bits and scales
        ("llama-3.1-70b-fp8", None, 1, 67.7229),
        ("gpt-oss-20b", "mxfp4", 1, 13.72),
    ],
)
def test_quantized_weights_take_what_servers_print(
    name: str, method: str | None, tensor_parallel: int, loaded_gib: float
) -> None:
    model = find_model(name, method)
    loaded = model.weight_bytes(tensor_parallel) + model.kernel_padding_bytes(tensor_parallel)
    assert loaded / GIB == pytest.approx(loaded_gib, rel=0.005)


def test_only_the_routed_experts_of_kimi_k2_5_are_in_4_bits() -> None:
    """With a scale of 16 bits for each 32 elements: 4.5 bits, as the card of ISTA-DASLab/Kimi-K2.5-2Bit-GSQ says."""
    model = find_model("kimi-k2.5")
    bits = {8 * routing.expert_bytes / routing.expert_parameters for routing in model.routings()}
    assert (bits, [stored.weight_format for stored in model.shared_weights()]) == ({4.5}, [None])


# What does not go together


@pytest.mark.parametrize(
    ("name", "method", "complaint"),
    [
        ("gpt-oss-20b", "fp8", "openai/gpt-oss-20b is stored as mxfp4, got 'fp8'"),
        ("llama-3.1-8b-fp8", "fp8", "nvidia/Llama-3.1-8B-Instruct-FP8 is stored as modelopt, got 'fp8'"),
        ("llama-3.1-8b", "mxfp4", "mxfp4 leaves llama-3.1-8b as it is, which has no routed experts"),
        ("llama-3.1-8b", "compressed-tensors", "compressed-tensors says not in which format"),
        ("llama-3.1-8b", "fp6", "must be one of fp8, fp8_per_block, .*, compressed-tensors, got 'fp6'"),
    ],
)
def test_a_method_that_does_not_go_with_the_model_is_refused(name: str, method: str, complaint: str) -> None:
    with pytest.raises(QuantizationError, match=complaint):
        find_model(name, method)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("gpt-oss-20b", "mxfp4"),
        ("deepseek-v3", "fp8"),
        ("llama-3.1-8b-fp8", "modelopt"),
        ("kimi-k2.5", "compressed-tensors"),
    ],
)
def test_the_method_that_a_model_is_stored_by_changes_nothing(name: str, method: str) -> None:
    assert find_model(name, method) == find_model(name)


@pytest.mark.parametrize(
    ("stored", "method"),
    [
        ({"quant_method": "awq_marlin"}, "awq"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "modelopt"),
    ],
)
def test_a_file_may_call_the_same_method_otherwise(
    config: Callable[..., str], stored: dict[str, object], method: str
) -> None:
    path = config(quantization_config=stored)
    assert find_model(path, method) == find_model(path)


def test_a_config_file_is_read_with_the_method(config: Callable[..., str]) -> None:
    assert find_model(config(), "awq").layers == find_model(config(quantization_config=section_of("awq"))).layers


def test_every_method_is_named_once_and_understood() -> None:
    known = [read_format(section_of(method), "model.layers.1.mlp.experts.1.w2") for method in METHODS[:-1]]
    assert known == [FP8_CHANNEL, FP8_BLOCK, FP8_CHANNEL, NVFP4, MXFP4, INT4, INT4, INT4]


# Published configurations, where the package that carries them is installed


def published_config(repository: str) -> Path:
    package = pytest.importorskip("aiconfigurator_core")
    return Path(package.__file__).parent / "model_configs" / (repository.replace("/", "--") + "_config.json")


@pytest.mark.parametrize(
    "repository",
    [
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-32B",
        "Qwen/Qwen3-235B-A22B",
        "Qwen/Qwen3-235B-A22B-FP8",
        "MiniMaxAI/MiniMax-M2.5",
        "moonshotai/Kimi-K2.5",
    ],
)
def test_an_entry_is_what_its_config_file_says(repository: str) -> None:
    entry, file = find_model(repository), read_model(published_config(repository))
    same = ("layers", "draft_layers", "vocab_size", "max_model_len", "tie_embeddings", "dtype")
    assert [name for name in same if getattr(entry, name) != getattr(file, name)] == []


def test_nvidia_says_beside_the_config_file_how_it_is_stored() -> None:
    """The file alone is that of 16 bits; with --quantization modelopt it is the entry."""
    repository = "nvidia/Llama-3.1-70B-Instruct-FP8"
    assert read_model(published_config(repository), "modelopt").layers == find_model(repository).layers


def test_fp8_blocks_of_qwen_leave_the_router_alone() -> None:
    assert formats(find_model("Qwen/Qwen3-235B-A22B-FP8")) == ({None, FP8_BLOCK}, {FP8_BLOCK})


def test_groups_of_integers_are_as_large_as_the_file_says() -> None:
    """Groups of 32 with a scale of 16 bits take 4.5 bits an element, with a zero point of 4 bits 4.625."""
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}
    stored = [
        read_format(
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {**weights, **fields}}}},
            "model.layers.1.mlp.down_proj",
        )
        for fields in ({}, {"symmetric": False}, {"group_size": None})
    ]
    assert [kind.num_bytes(128 * 8) for kind in stored if kind is not None] == [576, 592, 532]
