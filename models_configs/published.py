"""What is published about a model, under its Hugging Face names, and the rule that makes layers of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from models_configs.hf_config import HFConfig
from models_configs.model import Layer, Model

__all__ = ["Confidence", "Family", "Published", "Stack"]


class Confidence(StrEnum):
    """How a figure is known."""

    CONFIG = "read from the published config.json"
    TRANSCRIBED = "transcribed from the config.json by the sources named"
    CLASS_DEFAULT = "default of the model's class in transformers"
    RECALLED = "not checked against a source"


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


@dataclass(frozen=True, slots=True)
class Stack:
    """What a family's rule makes of a configuration."""

    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    """Layers that predict several tokens, where the model brings some along."""
    other_parameters: int = 0
    """Weights outside the layers beside embedding, output head and final norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models whose layers are built by one rule."""

    model_types: tuple[str, ...]
    """Values of `model_type` to which the rule applies."""
    stack: Callable[[HFConfig], Stack]
    """The rule."""
    published: tuple[Published, ...]
    ties_embeddings: bool = True
    """Whether a configuration that does not say so has one matrix for embedding and output."""
    max_model_len: int | None = None
    """Longest context where the configuration has none: models without positions."""
    class_defaults: Mapping[str, object] = field(default_factory=dict)
    """What published configurations leave to the model's class in transformers."""

    def model(self, published: Published, quantization: str | None = None) -> Model:
        """The model that the published figures describe, its weights stored as `quantization` says if it is given.

        Raises ConfigFieldError where a figure is missing, QuantizationError where it is stored otherwise.
        """
        config = HFConfig.of(published.config, published.hf_id)
        if quantization is not None:
            config = config.quantized(quantization)
        return self.read(config, published.name, published.hf_id, published.source, published.confidence)

    def read(self, config: HFConfig, name: str, hf_id: str, source: str, confidence: str) -> Model:
        """The model that a configuration describes. Raises ConfigFieldError where a figure is missing or unknown."""
        config = config.completed(self.class_defaults)
        stack = self.stack(config)
        return Model(
            name=name,
            hf_id=hf_id,
            layers=stack.layers,
            draft_layers=stack.draft_layers,
            other_parameters=stack.other_parameters,
            hidden_size=config.integer("hidden_size"),
            vocab_size=config.integer("vocab_size"),
            tie_embeddings=config.flag("tie_word_embeddings", default=self.ties_embeddings),
            max_model_len=config.integer("max_position_embeddings", default=self.max_model_len),
            dtype=_served_dtype(config),
            source=source,
            confidence=confidence,
            assumed=tuple(f"{field} {value}" for field, value in config.assumed.items()),
        )


def _served_dtype(config: HFConfig) -> str:
    """The checkpoint's, except that vLLM serves float32 as bfloat16 unless told otherwise."""
    name = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.text(name, default="bfloat16")
    return "bfloat16" if dtype == "float32" else dtype
