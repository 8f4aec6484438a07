"""`kvplan models`: the catalogue as a table, or all that is known about one model."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.table import Table

from kvcache.layout import KVCacheLayout
from kvcache.specs import AttentionSpec, KVCacheSpec, MambaSpec
from models_configs import Layer, Model, find_model, list_models
from models_configs.published import Confidence
from simulator.capacity import Capacity
from simulator.scenario import Scenario
from simulator.server import plan_server
from simulator.summary_table import format_bytes, format_number

__all__ = ["print_models"]

LETTERS = {"full": "F", "sliding": "S", "chunked": "C", "mla": "L", "mamba": "M", "shared": "K", "mlp": "-"}
"""Of each kind of layer in a drawn pattern."""
MEANINGS = {
    "full": "full attention: keeps every token",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "mla": "latent attention: keeps a vector of every token",
    "mamba": "state",
    "shared": "reads another layer's KV: keeps nothing",
    "mlp": "MLP only",
}
SOURCE_WORDS = {
    Confidence.CONFIG: "config",
    Confidence.TRANSCRIBED: "quoted",
    Confidence.CLASS_DEFAULT: "class",
    Confidence.RECALLED: "unsure",
}
"""Each confidence in one word."""

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_ROW_LETTERS = 48  # of a drawn pattern, at most
_TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16)
_WIDE_COLUMNS = 100  # from here on a terminal has room between the columns


def print_models(name: str | None, *, as_json: bool) -> None:
    """Print the catalogue, or the model with this catalogue name, Hugging Face id or path of a config.json.

    Raises UnknownModelError or ConfigFieldError with one line for a person, as `find_model` does.
    """
    facts = None if name is None else _Facts(find_model(name))
    if as_json:
        described = facts.detail() if facts else [_Facts(model).summary() for model in list_models()]
        Console(soft_wrap=True).print_json(json.dumps(described), highlight=False)
        return
    console = Console(highlight=False)
    if facts:
        _print_one(console, facts)
    else:
        _print_all(console, [_Facts(model) for model in list_models()])


# What is known


@dataclass(frozen=True)
class _Facts:
    """What a model keeps and weighs on one rank, in its own dtypes."""

    model: Model

    @cached_property
    def kinds(self) -> list[tuple[str, ...]]:
        """Of each layer's parts that mix tokens; none where it is an MLP only."""
        return [self._kinds(layer) for layer in self.model.layers]

    def _kinds(self, layer: Layer) -> tuple[str, ...]:
        options = self.model.kv_cache_options()
        specs = [mixer.spec(options) for mixer in layer.mixers]
        return tuple("shared" if spec is None else spec.kind for spec in specs)

    @cached_property
    def specs(self) -> list[KVCacheSpec]:
        """What each layer that keeps something keeps."""
        return self.model.kv_cache_specs()

    @property
    def attention_mix(self) -> str:
        """How many layers of which kind, in order of first appearance: 52 sliding 1,024 + 10 full."""
        options = self.model.kv_cache_options()
        layers = [[mixer.spec(options) for mixer in layer.mixers] for layer in self.model.layers]
        counts = Counter("+".join(map(_kind_and_reach, specs)) for specs in layers if specs)
        return " + ".join(f"{count} {kind}" for kind, count in counts.items()) or "no attention"

    @property
    def kv_bytes_per_token(self) -> int:
        """In all layers that keep every token."""
        return sum(spec.token_bytes for spec in self._attention() if _reach_tokens(spec) is None)

    @property
    def windowed_kv_bytes_per_token(self) -> int:
        """In all layers that keep a window or chunk, for each token in it."""
        return sum(spec.token_bytes for spec in self._attention() if _reach_tokens(spec) is not None)

    @property
    def full_window_bytes(self) -> int:
        """Of a request that has filled all windows and chunks."""
        return sum(spec.token_bytes * (_reach_tokens(spec) or 0) for spec in self._attention())

    @property
    def state_bytes(self) -> int:
        """Of one request in all layers with a state, unpadded."""
        return sum(spec.state_bytes for spec in self.specs if isinstance(spec, MambaSpec))

    def _attention(self) -> Iterator[AttentionSpec]:
        return (spec for spec in self.specs if isinstance(spec, AttentionSpec))

    @property
    def source_word(self) -> str:
        """How far the figures can be trusted."""
        return SOURCE_WORDS.get(Confidence(self.model.confidence), self.model.confidence)

    @cached_property
    def server(self) -> Capacity:
        """A server's pool on one rank. Its blocks are made up: groups and block sizes do not depend on them."""
        server = plan_server(Scenario(model=self.model.name, num_gpu_blocks_override=2))
        return _unchecked(server)

    @property
    def tensor_parallel_sizes(self) -> list[int]:
        """Ranks over which the heads or channels can be split."""
        return [size for size in _TENSOR_PARALLEL_SIZES if self.model.can_split(size)]

    def summary(self) -> dict[str, object]:
        """The catalogue's row in plain JSON values."""
        model = self.model
        return {
            "name": model.name,
            "hf_id": model.hf_id,
            "num_layers": len(model.layers),
            "attention_mix": self.attention_mix,
            "parameters": model.num_parameters,
            "active_parameters": model.num_active_parameters,
            "weight_bytes": model.weight_bytes(),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "windowed_kv_bytes_per_token": self.windowed_kv_bytes_per_token,
            "full_window_bytes": self.full_window_bytes,
            "state_bytes": self.state_bytes,
            "max_model_len": model.max_model_len,
            "dtype": model.dtype,
            "confidence": model.confidence,
        }
