"""A model's `config.json`, read field by field: what is missing or odd is named, what is assumed is noted."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from models_configs.quantization import WeightFormat, read_format
from models_configs.quantization_methods import QuantizationError, is_method, method_of, section_of

__all__ = ["ConfigFieldError", "HFConfig", "read_config_file"]

T = TypeVar("T")

# A multimodal model keeps its language model's fields in one of these; some stand beside it all the same.
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
BESIDE_TEXT = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")


class ConfigFieldError(ValueError):
    """A configuration lacks a field, or has one of the wrong kind or with an unknown value; the message names it."""


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The fields of one `config.json`, those of its language model if it has several, read with their types."""

    fields: Mapping[str, object]
    origin: str
    """Whose configuration it is, for errors."""
    assumed: dict[str, object] = field(default_factory=dict)
    """Fields that were left out, and what was taken instead."""

    @classmethod
    def of(cls, fields: Mapping[str, object], origin: str) -> "HFConfig":
        """The configuration of the language model among these fields."""
        text = next((inner for name in TEXT_SECTIONS if isinstance(inner := fields.get(name), Mapping)), None)
        if text is None:
            return cls(fields, origin)
        beside = {name: fields[name] for name in BESIDE_TEXT if fields.get(name) is not None}
        return cls({"model_type": fields.get("model_type"), **beside, **text}, origin)

    def completed(self, defaults: Mapping[str, object]) -> "HFConfig":
        """With these fields where it has none, noted as assumed."""
        missing = {name: value for name, value in defaults.items() if not self.has(name)}
        self.assumed.update(missing)
        return HFConfig({**self.fields, **missing}, self.origin, self.assumed)

    def has(self, name: str) -> bool:
        """Whether the field is there, and not null."""
        return self.fields.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number. Raises ConfigFieldError where it is missing without a default, or no whole number."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._error(name, value, "a whole number")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Yes or no. Raises ConfigFieldError where it is neither."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._error(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A word. Raises ConfigFieldError where it is missing without a default, or no text."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._error(name, value, "text")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of words. Raises ConfigFieldError where it is missing or anything else."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(name, value, "a list of texts")
        return value

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers. Raises ConfigFieldError where it is missing or anything else."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._error(name, value, "a list of whole numbers")
        return value

    def section(self, name: str) -> Mapping[str, object]:
        """A nested object, empty where it is missing. Raises ConfigFieldError where it is anything else."""
        value = self.fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._error(name, value, "an object")
        return value

    def layer_types(self, known: Mapping[str, T]) -> list[T]:
        """What stands for each entry of `layer_types`, which must be as many as layers.

        Raises ConfigFieldError for an entry that is not `known`.
        """
        types, num_layers = self.texts("layer_types"), self.integer("num_hidden_layers")
        if len(types) != num_layers:
            raise ConfigFieldError(f"{self.origin} has {num_layers} layers but {len(types)} layer_types")
        if unknown := set(types) - set(known):
            raise ConfigFieldError(f"unknown layer_types of {self.origin}: {', '.join(sorted(unknown))}")
        return [known[kind] for kind in types]

    def weight_format(self, module: str) -> WeightFormat | None:
        """How a module's matrices are stored, for instance "model.layers.1.self_attn.q_proj"; None: unquantized."""
        try:
            return read_format(self.section("quantization_config"), module)
        except ValueError as error:
            raise ConfigFieldError(f"quantization_config of {self.origin}: {error}") from None

    def quantized(self, method: str) -> "HFConfig":
        """With the `quantization_config` that a server's `--quantization` stands for.

        Raises QuantizationError where the checkpoint is quantized by another method, or the method is unknown.
        """
        stored = self.section("quantization_config")
        if not stored:
            return HFConfig({**self.fields, "quantization_config": section_of(method)}, self.origin, self.assumed)
        if not is_method(stored, method):
            raise QuantizationError(f"{self.origin} is stored as {method_of(stored)}, got {method!r}")
        return self

    def _value(self, name: str, default: object) -> object:
        value = self.fields.get(name)
        if value is None and default is not None:
            self.assumed[name] = default
            return default
        return value

    def _error(self, name: str, value: object, wanted: str) -> ConfigFieldError:
        if value is None:
            return ConfigFieldError(f"the configuration of {self.origin} lacks {name}")
        return ConfigFieldError(f"{name} in the configuration of {self.origin} must be {wanted}, got {value!r}")


def read_config_file(path: Path) -> HFConfig:
    """A `config.json`, or the one in a folder. Raises ConfigFieldError where there is none, or no JSON object in it."""
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text())
    except OSError as error:
        raise ConfigFieldError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigFieldError(f"{file}: no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigFieldError(f"{file}: must hold an object, has {type(fields).__name__}")
    return HFConfig.of(fields, str(file))
