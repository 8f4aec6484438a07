"""`kvplan models`: the catalogue as a table, or all that is known about one model."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvcache.errors import KVCacheError
from kvcache.layout import KVCacheLayout
from kvcache.specs import AttentionSpec, KVCacheSpec, MambaSpec
from models_configs import Model, find_model, list_models
from models_configs.published import Confidence
from simulator.capacity import Capacity
from simulator.capacity_command import block_line, group_lines
from simulator.scenario import Scenario
from simulator.server import plan_server
from simulator.summary_table import format_bytes, format_number

__all__ = ["print_models"]

LAYER_KINDS = {
    "full": ("F", "full attention: keeps every token"),
    "sliding": ("S", "sliding window: keeps its last tokens"),
    "chunked": ("C", "chunked attention: keeps the tokens of its chunk"),
    "mla": ("L", "latent attention: keeps one vector of every token"),
    "mamba": ("M", "state of constant size"),
    "shared": ("K", "reads another layer's KV: keeps nothing"),
    "mlp": ("-", "MLP only"),
}
"""(letter in a drawn pattern, meaning) of what is in a layer."""

SOURCE_WORDS: dict[str, str] = {
    Confidence.CONFIG: "config",
    Confidence.TRANSCRIBED: "quoted",
    Confidence.CLASS_DEFAULT: "class",
    Confidence.RECALLED: "unsure",
}
"""Each confidence in one word."""

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_BILLION = 1e9
_MOST_RANKS = 16
_ROW_LETTERS = 48  # of a drawn pattern, at most: it fits into 80 columns, spaces included
_WIDE_COLUMNS = 112  # a terminal with fewer shows a model's attention below its name


def print_models(name: str | None, *, as_json: bool) -> None:
    """Print the catalogue, or the model with this catalogue name, Hugging Face id or path of a config.json.

    Raises UnknownModelError or ConfigFieldError with one line for a person, as `find_model` does.
    """
    if name is not None:
        facts, grouping = _Facts(find_model(name)), _on_one_rank(name)
        if as_json:
            _print_json({**facts.detail(), **_describe_grouping(grouping)})
        else:
            _print_one(facts, grouping)
        return
    catalogue = [_Facts(model) for model in list_models()]
    if as_json:
        _print_json([facts.summary() for facts in catalogue])
    else:
        _print_all(catalogue)


def _print_json(described: object) -> None:
    Console(soft_wrap=True).print_json(json.dumps(described), highlight=False)


def _console() -> Console:
    """Shows text as it is: a path may have brackets and colons."""
    return Console(highlight=False, markup=False, emoji=False)


# What is known


@dataclass(frozen=True)
class _Facts:
    """What a model keeps and weighs on one rank, in the dtypes of its own."""

    model: Model

    @cached_property
    def layer_specs(self) -> list[list[KVCacheSpec | None]]:
        """What each part that mixes tokens keeps, layer by layer; None where it reads another layer's KV."""
        options = self.model.kv_cache_options()
        return [[mixer.spec(options) for mixer in layer.mixers] for layer in self.model.layers]

    @property
    def layer_kinds(self) -> list[tuple[str, ...]]:
        """What is in each layer, in the words of LAYER_KINDS."""
        kinds = [tuple("shared" if spec is None else spec.kind for spec in specs) for specs in self.layer_specs]
        return [layer or ("mlp",) for layer in kinds]

    @property
    def attention_mix(self) -> str:
        """How many layers mix tokens in which way, in order of first appearance: 52 sliding 1,024 + 10 full."""
        counts = Counter("+".join(map(_kind_and_reach, specs)) for specs in self.layer_specs if specs)
        return " + ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"

    @cached_property
    def specs(self) -> list[KVCacheSpec]:
        """The same without those that keep nothing."""
        return [spec for specs in self.layer_specs for spec in specs if spec is not None]

    @cached_property
    def attention(self) -> list[tuple[int, int]]:
        """(bytes of a token, tokens of the window or chunk) of each that keeps tokens; 0 tokens: all of them."""
        return [(spec.token_bytes, _reach_tokens(spec)) for spec in self.specs if isinstance(spec, AttentionSpec)]

    @property
    def kv_bytes_per_token(self) -> int:
        """Over the layers that keep every token."""
        return sum(token_bytes for token_bytes, reach in self.attention if not reach)

    @property
    def windowed_kv_bytes_per_token(self) -> int:
        """Over the layers that keep a window or a chunk, of a token that is in it."""
        return sum(token_bytes for token_bytes, reach in self.attention if reach)

    @property
    def full_window_bytes(self) -> int:
        """Of a request whose windows and chunks are full."""
        return sum(token_bytes * reach for token_bytes, reach in self.attention)

    @property
    def state_bytes(self) -> int:
        """Of a request, over the layers with a state, without padding."""
        return sum(spec.state_bytes for spec in self.specs if isinstance(spec, MambaSpec))

    @property
    def source_word(self) -> str:
        """How the figures are known."""
        return SOURCE_WORDS.get(self.model.confidence, self.model.confidence)

    @property
    def tensor_parallel_sizes(self) -> list[int]:
        """Numbers of ranks, up to 16, over which heads and channels can be split."""
        return [size for size in range(1, _MOST_RANKS + 1) if self.model.can_split(size)]

    def summary(self) -> dict[str, object]:
        """A row of the catalogue in plain JSON values; bytes are those of one rank."""
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
            "confidence": str(model.confidence),
        }

    def detail(self) -> dict[str, object]:
        """The same and what else is known of one model."""
        model = self.model
        return {
            **self.summary(),
            "source": model.source,
            "assumed": list(model.assumed),
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "num_draft_layers": len(model.draft_layers),
            "tensor_parallel_sizes": self.tensor_parallel_sizes,
            "layer_pattern": self.letters(),
        }

    def letters(self) -> list[str]:
        """A letter for each part of each layer."""
        return ["".join(LAYER_KINDS[kind][0] for kind in layer) for layer in self.layer_kinds]


def _reach_tokens(spec: object) -> int:
    """Tokens of the window or chunk; 0 where everything is kept."""
    tokens: int = getattr(spec, "window", None) or getattr(spec, "chunk", None) or 0
    return tokens


def _kind_and_reach(spec: KVCacheSpec | None) -> str:
    if spec is None:
        return "shared"
    reach = _reach_tokens(spec)
    return f"{spec.kind} {reach:,}" if reach else spec.kind


def _on_one_rank(name: str) -> Capacity | str:
    """How a server on one rank groups the layers, or why it refuses to."""
    try:
        # Groups do not depend on the number of blocks: stated, no GPU is needed.
        server = plan_server(Scenario(model=name, num_gpu_blocks_override=2))
    except KVCacheError as error:
        return str(error)
    # As Server.layout() has it, without the check whether so small a pool would do.
    layout = KVCacheLayout(server.groups, server.num_blocks, server.limits.max_model_len, server.max_in_flight_tokens)
    return Capacity(server, layout)


def _describe_grouping(grouping: Capacity | str) -> dict[str, Any]:
    if isinstance(grouping, str):
        return {"grouping_refused": grouping}
    described = grouping.describe()
    names = ("block_size", "groups", "bytes_per_block", "mamba_padding_pct", "padding_slots_pct")
    return {name: described[name] for name in names}


# All models


def _print_all(catalogue: Sequence[_Facts]) -> None:
    console = _console()
    narrow = console.width < _WIDE_COLUMNS
    table = Table(box=None, pad_edge=False, collapse_padding=narrow)
    for heading in ("\n\nModel",) if narrow else ("\n\nModel", "\n\nAttention"):
        table.add_column(heading)
    for heading in (
        "Billion\nparams\n(active)", "\nWeight\nGiB", "Full\nKiB/\ntoken", "Window\nKiB/\ntoken", "\nState\nMiB",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("\n\nSource", no_wrap=True)
    for facts in catalogue:
        name, mix = facts.model.name, Text(facts.attention_mix)
        table.add_row(*((Group(name, Padding(mix, (0, 0, 0, 2))),) if narrow else (name, mix)), *_figures(facts))
    console.print(table)
    console.print(
        "\nOn one rank, in each model's own dtypes. Full and Window: KV of one token, over the layers that keep every"
        " token and over those that keep the last ones. State: of one request."
    )
    for confidence, word in SOURCE_WORDS.items():
        console.print(f"Source {word}: {confidence}")


def _figures(facts: _Facts) -> tuple[str, ...]:
    model = facts.model
    return (
        _parameters(model),
        format_number(model.weight_bytes() / _GIB),
        _number_or_nothing(facts.kv_bytes_per_token / _KIB),
        _number_or_nothing(facts.windowed_kv_bytes_per_token / _KIB),
        _number_or_nothing(facts.state_bytes / _MIB),
        facts.source_word,
    )


def _parameters(model: Model) -> str:
    """In billions; those that a token passes in brackets, where they are fewer."""
    total = format_number(model.num_parameters / _BILLION)
    if model.num_active_parameters == model.num_parameters:
        return total
    return f"{total} ({format_number(model.num_active_parameters / _BILLION)})"


def _number_or_nothing(value: float) -> str:
    return format_number(value) if value else ""


# One model


def _print_one(facts: _Facts, grouping: Capacity | str) -> None:
    console = _console()
    model = facts.model
    title = model.name if model.hf_id == model.name else f"{model.name} ({model.hf_id})"
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for what, how_much in (*_figure_lines(facts), *_grouping_lines(grouping), *_source_lines(model)):
        table.add_row(what, how_much)
    console.print(table)
    console.print("Layers, each with the number of the first in its row:")
    for row in draw_pattern(facts.letters()):
        console.print(f"  {row}")
    shown = {kind for layer in facts.layer_kinds for kind in layer}
    for kind, (letter, meaning) in LAYER_KINDS.items():
        if kind in shown:
            console.print(f"{letter}  {meaning}")


def _figure_lines(facts: _Facts) -> Iterator[tuple[str, str]]:
    model = facts.model
    num_mlp_only = sum(kinds == ("mlp",) for kinds in facts.layer_kinds)
    mlps = f" + {num_mlp_only} MLP only" if num_mlp_only else ""
    yield "Layers", f"{len(model.layers)}: {facts.attention_mix}{mlps}"
    active = ""
    if model.num_active_parameters != model.num_parameters:
        active = f", {format_number(model.num_active_parameters / _BILLION)} billion of them active for a token"
    yield "Parameters", f"{format_number(model.num_parameters / _BILLION)} billion{active}"
    bits = 8 * model.weight_bytes() / model.num_parameters
    yield "Weights", f"{format_bytes(model.weight_bytes())} on one rank ({format_number(bits)} bits per parameter)"
    if facts.kv_bytes_per_token:
        yield "KV of a token", f"{format_bytes(facts.kv_bytes_per_token)} in the layers that keep every token"
    if facts.windowed_kv_bytes_per_token:
        token, request = format_bytes(facts.windowed_kv_bytes_per_token), format_bytes(facts.full_window_bytes)
        yield "KV in windows", f"{token} a token, {request} a request when they are full"
    if facts.state_bytes:
        yield "States of a request", f"{format_bytes(facts.state_bytes)} without padding"
    yield "Longest context", f"{model.max_model_len:,} tokens"
    if model.draft_layers:
        yield "Layers that draft", f"{len(model.draft_layers)}, loaded for speculative decoding only"
    sizes = ", ".join(map(str, facts.tensor_parallel_sizes))
    yield "Tensor-parallel sizes", f"{sizes} (beyond {_MOST_RANKS}: not tried)"


def _grouping_lines(grouping: Capacity | str) -> Iterator[tuple[str, str]]:
    if isinstance(grouping, str):
        yield "KV cache groups", f"refused: {grouping}"
        return
    yield "Block on one rank", block_line(grouping)
    for nth, line in enumerate(group_lines(grouping)):
        yield "KV cache groups" if not nth else "", line


def _source_lines(model: Model) -> Iterator[tuple[str, str]]:
    yield "Source", model.source
    yield "Confidence", str(model.confidence)
    if model.assumed:
        yield "Assumed", ", ".join(model.assumed)


def draw_pattern(layers: Sequence[str]) -> list[str]:
    """Rows of letters; where the layers repeat, each repetition stands apart and none is broken at a row's end."""
    width = max(map(len, layers))
    fitting = _ROW_LETTERS // width
    period = _period(layers)
    apart = period if 1 < period <= fitting // 2 else fitting
    in_row = fitting // apart * apart
    # Letters of one layer stand together, so wider ones need a space between layers.
    cells, between = [layer.ljust(width) for layer in layers], " " * (width > 1)
    rows = []
    for first in range(0, len(cells), in_row):
        row = cells[first : first + in_row]
        parts = [between.join(row[start : start + apart]) for start in range(0, len(row), apart)]
        rows.append(f"{first:>4}  {(' ' + between).join(parts)}".rstrip())
    return rows


def _period(layers: Sequence[str]) -> int:
    """After how many layers the pattern repeats; their number where it does not."""
    return next(size for size in range(1, len(layers) + 1) if layers[size:] == layers[:-size] or size == len(layers))
