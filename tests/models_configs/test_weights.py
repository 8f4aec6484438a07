"""What weighs how much: the weights that every token passes by format, and the experts that some pass."""

import pytest

from models_configs import Model, find_model, list_models
from models_configs.quantization import FP8_BLOCK, MXFP4, NVFP4, StoredWeights, Weights

RANKS = (1, 2, 4, 8)


def expert_bytes(model: Model, tensor_parallel: int) -> int:
    return sum(routing.num_experts * routing.expert_bytes for routing in model.routings(tensor_parallel))


def outer_bytes(model: Model, tensor_parallel: int) -> int:
    """Embedding, output head, final norm, and what else is in no layer."""
    matrices = (2 - model.tie_embeddings) * model.embedding_parameters(tensor_parallel)
    others = -(-model.other_parameters // tensor_parallel) + model.hidden_size
    return model.element_bytes * (matrices + others)


@pytest.mark.parametrize("tensor_parallel", RANKS)
def test_shared_weights_and_experts_and_embeddings_are_all_weights(tensor_parallel: int) -> None:
    """For every model that can be split so."""
    models = [model for model in list_models() if model.can_split(tensor_parallel)]
    summed = {
        model.name: sum(stored.num_bytes for stored in model.shared_weights(tensor_parallel))
        + expert_bytes(model, tensor_parallel)
        + outer_bytes(model, tensor_parallel)
        for model in models
    }
    assert summed == {model.name: model.weight_bytes(tensor_parallel) for model in models}


@pytest.mark.parametrize("tensor_parallel", RANKS)
def test_shared_weights_are_as_many_as_every_token_passes(tensor_parallel: int) -> None:
    models = [model for model in list_models() if model.can_split(tensor_parallel)]
    summed = {m.name: sum(stored.num_parameters for stored in m.shared_weights(tensor_parallel)) for m in models}
    counted = {m.name: sum(layer.num_shared_parameters(tensor_parallel) for layer in m.layers) for m in models}
    assert summed == counted


def test_an_unquantized_model_has_one_kind_of_weights() -> None:
    llama = find_model("llama-3.1-8b")
    in_layers = llama.num_parameters - 2 * llama.embedding_parameters() - llama.hidden_size
    assert llama.shared_weights() == ((None, in_layers, 2 * in_layers),)


def test_a_format_comes_once_however_many_layers_have_it() -> None:
    """DeepSeek's projections and shared experts are in 8 bits; routers and norms stay in 16."""
    formats = [stored.weight_format for stored in find_model("deepseek-v3").shared_weights()]
    assert sorted(formats, key=str) == sorted([None, FP8_BLOCK], key=str)


def test_experts_say_how_they_are_stored() -> None:
    """gpt-oss has experts in 4 bits, and nothing else."""
    model = find_model("gpt-oss-20b")
    assert {routing.weight_format for routing in model.routings()} == {MXFP4}
    assert [stored.weight_format for stored in model.shared_weights()] == [None]


def test_what_is_no_matrix_stays_unquantized() -> None:
    """48 elements of 4 bits and a scale of 8 bits for each 16 of them; 10 biases of two bytes."""
    assert Weights(48, 10).stored(2, NVFP4) == (StoredWeights(NVFP4, 48, 27), StoredWeights(None, 10, 20))
