"""What is published about a model, under its Hugging Face names, and how it is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from models_configs.model import Layer, Model

__all__ = ["Confidence", "ConfigFieldError", "Family", "HFConfig", "Published"]


class ConfigFieldError(ValueError):
    """A configuration lacks a field, or has one of the wrong kind; the message names it."""


class Confidence(StrEnum):
    """How a figure is known."""

    CONFIG = "read from the published config.json"
    TRANSCRIBED = "transcribed from the config.json by the sources named"
    CLASS_DEFAULT = "default of the model's class in transformers"
    RECALLED = "not checked against a source"


@dataclass(frozen=True, slots=True)
class HFConfig:
    """The fields of one `config.json` (of its `text_config` where it has one), read with their types."""

    fields: Mapping[str, object]
    origin: str
    """Whose configuration it is, for errors."""

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number. Raises ConfigFieldError where it is missing without a default, or no whole number."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._error(name, value, "a whole number")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Yes or no. Raises ConfigFieldError where it is neither."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A word. Raises ConfigFieldError where it is missing without a default, or no text."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._error(name, value, "text")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of words. Raises ConfigFieldError where it is missing or anything else."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(name, value, "a list of texts")
        return value

    def section(self, name: str) -> Mapping[str, object]:
        """A nested object, empty where it is missing. Raises ConfigFieldError where it is anything else."""
        value = self.fields.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._error(name, value, "an object")
        return value

    def _error(self, name: str, value: object, wanted: str) -> ConfigFieldError:
        if value is None:
            return ConfigFieldError(f"the configuration of {self.origin} lacks {name}")
        return ConfigFieldError(f"{name} in the configuration of {self.origin} must be {wanted}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The figures of one model and where they come from."""

    name: str
    """Short name in the catalogue."""
    hf_id: str
    config: Mapping[str, object]
    """Figures under their Hugging Face names."""
    source: str
    confidence: Confidence
    exceptions: Mapping[str, str] = field(default_factory=dict)
    """Of single figures that are known from elsewhere: field to source and confidence."""
    same_shape: tuple[str, ...] = ()
    """Other Hugging Face repositories with the same figures (instruction-tuned, renamed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models whose layers are built by one rule."""

    model_types: tuple[str, ...]
    """Values of `model_type` to which the rule applies."""
    layers: Callable[[HFConfig], tuple[Layer, ...]]
    """The rule."""
    published: tuple[Published, ...]

    def model(self, published: Published) -> Model:
        """The model that the published figures describe. Raises ConfigFieldError where a figure is missing."""
        config = HFConfig(published.config, published.hf_id)
        return Model(
            name=published.name,
            hf_id=published.hf_id,
            layers=self.layers(config),
            hidden_size=config.integer("hidden_size"),
            vocab_size=config.integer("vocab_size"),
            # transformers ties them unless the model's class or its config.json says otherwise
            tie_embeddings=config.flag("tie_word_embeddings", default=True),
            max_model_len=config.integer("max_position_embeddings"),
            dtype=config.text("torch_dtype", default="bfloat16"),
            source=published.source,
            confidence=published.confidence,
        )
