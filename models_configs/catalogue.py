"""Models by name, or by the path of their `config.json`."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path

from models_configs.families import FAMILIES
from models_configs.hf_config import HFConfig, read_config_file
from models_configs.model import Model
from models_configs.published import Confidence, Family, Published
from models_configs.quantization_methods import QuantizationError

__all__ = ["UnknownModelError", "find_model", "list_models", "read_model"]


class UnknownModelError(ValueError):
    """No model has this name or architecture; the message is one line for a person."""


@cache
def _by_name() -> dict[str, tuple[Family, Published]]:
    """By each name in lower case: the short one, and repositories with or without their owner."""
    by_name = {}
    for family in FAMILIES:
        for published in family.published:
            repositories = [published.hf_id, *published.same_shape]
            for name in (published.name, *repositories, *(repository.split("/")[1] for repository in repositories)):
                by_name[name.lower()] = family, published
    return by_name


@cache
def _model(family_index: int, index: int, quantization: str | None = None) -> Model:
    family = FAMILIES[family_index]
    return family.model(family.published[index], quantization)


def list_models() -> list[Model]:
    """All models, family by family."""
    return [_model(number, index) for number, family in enumerate(FAMILIES) for index in range(len(family.published))]


def find_model(name: str, quantization: str | None = None) -> Model:
    """The model with this short name or Hugging Face repository, in any case, or that of a `config.json`.

    A name that ends in .json or has a separator at its beginning is a path, as is any folder with a
    config.json. `quantization` is a server's `--quantization` (one of METHODS): how the weights are stored.
    Raises UnknownModelError, which suggests the nearest name, ConfigFieldError for what a config.json
    says, or QuantizationError where the model is stored otherwise, or has no weights to be stored so.
    """
    model = _found(name, quantization)
    if quantization is not None and not _is_quantized(model):
        raise QuantizationError(f"{quantization} leaves {model.name} as it is, which has no routed experts")
    return model


def _is_quantized(model: Model) -> bool:
    formats = [weights.weight_format for weights in model.shared_weights()]
    formats += [routing.weight_format for routing in model.routings()]
    return any(weight_format is not None for weight_format in formats)


def _found(name: str, quantization: str | None) -> Model:
    by_name = _by_name()
    if found := by_name.get(name.lower()):
        family, published = found
        return _model(FAMILIES.index(family), family.published.index(published), quantization)
    path = Path(name)
    if path.suffix == ".json" or path.is_absolute() or name.startswith(".") or (path / "config.json").is_file():
        return read_model(path, quantization)
    if nearest := get_close_matches(name.lower(), by_name, n=1):
        raise UnknownModelError(f'unknown model "{name}"; did you mean "{nearest[0]}"?')
    known = ", ".join(published.name for family in FAMILIES for published in family.published)
    raise UnknownModelError(f'unknown model "{name}"; known: {known}; or a path to a config.json')


def read_model(path: Path, quantization: str | None = None) -> Model:
    """The model that a `config.json` (or a folder with one) describes, stored as `quantization` says if it is given.

    Raises UnknownModelError for an architecture that no family knows, ConfigFieldError for what is
    missing or not understood, QuantizationError where it is stored otherwise.
    """
    config = read_config_file(path)
    if quantization is not None:
        config = config.quantized(quantization)
    family = _family_of(config)
    named_by_folder = path.is_dir() or path.name == "config.json"
    name = (path.absolute() if path.is_dir() else path.absolute().parent).name if named_by_folder else path.stem
    return family.read(config, name or "config.json", str(path), f"{path}", Confidence.CONFIG)


def _family_of(config: HFConfig) -> Family:
    model_type = config.text("model_type")
    known = {known: family for family in FAMILIES for known in family.model_types}
    if family := known.get(model_type):
        return family
    near = get_close_matches(model_type, known, n=1)
    hint = f'; the nearest known is "{near[0]}"' if near else f"; known: {', '.join(sorted(known))}"
    raise UnknownModelError(f'{config.origin}: model_type "{model_type}" is not known{hint}')
