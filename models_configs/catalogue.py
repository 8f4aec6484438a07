"""Models by name."""

from difflib import get_close_matches
from functools import cache

from models_configs.families import FAMILIES
from models_configs.model import Model
from models_configs.published import Published

__all__ = ["UnknownModelError", "find_model", "list_models"]


class UnknownModelError(ValueError):
    """No model has this name; the message is one line for a person."""


@cache
def _entries() -> tuple[tuple[Published, Model], ...]:
    return tuple((published, family.model(published)) for family in FAMILIES for published in family.published)


@cache
def _models_by_name() -> dict[str, Model]:
    """Models by each of their names in lower case: the short one, and repositories with or without their owner."""
    by_name = {}
    for published, model in _entries():
        repositories = [published.hf_id, *published.same_shape]
        for name in (published.name, *repositories, *(repository.split("/")[1] for repository in repositories)):
            by_name[name.lower()] = model
    return by_name


def list_models() -> list[Model]:
    """All models, family by family."""
    return [model for _, model in _entries()]


def find_model(name: str) -> Model:
    """The model with this short name or Hugging Face repository, in any case.

    Raises UnknownModelError, which suggests the nearest name.
    """
    by_name = _models_by_name()
    if model := by_name.get(name.lower()):
        return model
    if nearest := get_close_matches(name.lower(), by_name, n=1):
        raise UnknownModelError(f'unknown model "{name}"; did you mean "{nearest[0]}"?')
    known = ", ".join(model.name for model in list_models())
    raise UnknownModelError(f'unknown model "{name}"; known: {known}')
