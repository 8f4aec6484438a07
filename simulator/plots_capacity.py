"""Draw what a server's pool holds: against the length of its requests, and against its ranks.

The picture has three panels, and the figures behind it lie beside it as CSV.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcache.errors import KVCacheError
from simulator.capacity import Capacity, RequestNeed
from simulator.memory import WeightsDoNotFitError
from simulator.run_folder import write_whole
from simulator.scenario import Scenario, ScenarioError
from simulator.server import Server, plan_server
from simulator.summary_table import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write_curve"]

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_BLUE, _SKY, _VERMILION = "#0072B2", "#56B4E9", "#D55E00"
_INK, _GREY = "#1a1d21", "#666666"

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.axisbelow": True, "axes.grid": True, "grid.color": _INK, "grid.alpha": 0.15, "grid.linewidth": 0.5,
    "axes.titlesize": "medium", "axes.titlelocation": "left", "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "kvplan",
}  # fmt: skip

_FORMATS = ("png", "svg")
_SIZE_INCHES = (14.0, 4.9)
_DOTS_PER_INCH = 130
_SHORTEST_TOKENS = 128  # of a drawn request: below, blocks that are not full would be all that one sees
_LENGTHS = 240
_TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16)
_FEW_DECADES = 2.5  # an axis that covers fewer is labelled at 1, 2 and 5
_MANY_TOKENS = 1_000_000  # an axis that reaches them has room for fewer labels
_LEAST_OCTAVES = 3.0  # an axis of bytes covers at least so many doublings, even where nothing grows

_BYTES, _REQUESTS, _RANKS = "bytes of a request", "requests at once", "tensor-parallel size"
_ADMISSION, _DECODING = "at admission (bound)", "while it decodes"
_COLUMNS = (
    "panel", "series", "request_tokens", "tensor_parallel_size", "bytes_per_rank", "requests", "kv_cache_tokens",
    "refusal",
)  # fmt: skip


def write_curve(capacity: Capacity, path: Path) -> Path:
    """Draw the capacity into `path` (.png or .svg), write the table behind it beside it (.csv), give `path` back.

    Raises ScenarioError where `path` is neither or cannot be written, and where nothing is kept.
    """
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in _FORMATS:
        raise ScenarioError(f"--curve: must end in .png or .svg, got {str(path)!r}")
    if not capacity.layout.groups:
        raise ScenarioError(f"--curve: there is nothing to draw, no layer of {capacity.server.model.name} keeps KV")
    curve = _Curve.of(capacity)
    table = path.with_suffix(".csv")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(table, lambda file: _write_table(curve, file))
        write_whole(path, lambda file: _draw(curve, file, file_format))
    except OSError as error:
        raise ScenarioError(f"--curve: {path} cannot be written: {error.strerror}") from None
    return path


# What is drawn


@dataclass(frozen=True, slots=True)
class _Size:
    """The server with another number of ranks to each layer."""

    tensor_parallel_size: int
    capacity: Capacity | None
    refusal: str = ""
    """Why it would not start."""

    @classmethod
    def of(cls, scenario: Scenario, tensor_parallel_size: int) -> _Size:
        """Planned anew: what was stated for one rank (bytes, blocks) stays, what follows from the GPU does not."""
        resized = scenario.model_copy(update={"tensor_parallel_size": tensor_parallel_size})
        try:
            return cls(tensor_parallel_size, Capacity.of(plan_server(resized)))
        except (KVCacheError, ScenarioError, WeightsDoNotFitError) as error:
            return cls(tensor_parallel_size, None, str(error))


@dataclass(frozen=True)
class _Curve:
    """The figures of all panels."""

    capacity: Capacity
    needs: tuple[RequestNeed, ...]
    """Of ever longer requests, up to the model's longest."""
    sizes: tuple[_Size, ...]

    @classmethod
    def of(cls, capacity: Capacity) -> _Curve:
        server = capacity.server
        asked = server.scenario.tensor_parallel_size
        sizes = sorted({*_TENSOR_PARALLEL_SIZES, asked})
        return cls(
            capacity,
            tuple(capacity.need(length) for length in _lengths(server.model.max_model_len)),
            tuple(_Size.of(server.scenario, size) for size in sizes if server.model.can_split(size)),
        )

    @property
    def lengths(self) -> list[int]:
        """Tokens of each request."""
        return [need.num_tokens for need in self.needs]

    @property
    def pool_bytes(self) -> int:
        """Of the pool on each rank, the null block included, as a server counts it."""
        return self.capacity.layout.num_blocks * self.capacity.bytes_per_block

    def series(self) -> list[tuple[str, list[int]]]:
        """(name, bytes on each rank that a request of each length takes)."""
        return [
            (_ADMISSION, [need.admission_bytes for need in self.needs]),
            (_DECODING, [need.steady_bytes for need in self.needs]),
        ]

    def rows(self) -> Iterator[dict[str, object]]:
        """The table: one for each point, with those of the columns that its panel has."""
        layout = self.capacity.layout
        for name, taken in self.series():
            for length, num_bytes in zip(self.lengths, taken, strict=True):
                yield {"panel": _BYTES, "series": name, "request_tokens": length, "bytes_per_rank": num_bytes}
                fit = self.pool_bytes / num_bytes
                yield {"panel": _REQUESTS, "series": name, "request_tokens": length, "requests": fit}
        yield {"panel": _BYTES, "series": "the pool", "bytes_per_rank": self.pool_bytes}
        yield {"panel": _BYTES, "series": "max_model_len", "request_tokens": layout.max_model_len}
        yield {"panel": _REQUESTS, "series": "max_num_seqs", "requests": self.capacity.server.limits.max_num_seqs}
        for size in self.sizes:
            row: dict[str, object] = {"panel": _RANKS, "tensor_parallel_size": size.tensor_parallel_size}
            if size.capacity is None:
                yield {**row, "series": "does not start", "refusal": size.refusal}
                continue
            held = size.capacity.layout
            yield {**row, "series": "GPU KV cache size", "kv_cache_tokens": held.kv_cache_tokens}
            at = {"request_tokens": held.max_model_len, "requests": held.max_concurrency}
            yield {**row, "series": "maximum concurrency", **at}


def _write_table(curve: _Curve, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(curve.rows())


def _lengths(longest_tokens: int) -> list[int]:
    """Whole numbers, the same factor apart, the longest one last."""
    shortest_tokens = min(_SHORTEST_TOKENS, max(1, longest_tokens // 8))
    return [int(length) for length in np.unique(np.geomspace(shortest_tokens, longest_tokens, _LENGTHS).round())]


# The panels


def _draw(curve: _Curve, path: Path, file_format: str) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with rc_context(_STYLE):
        figure = Figure(figsize=_SIZE_INCHES, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
        FigureCanvasAgg(figure)
        _draw_panels(curve, figure)
        # No version and no date: equal capacities give equal bytes.
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type") if file_format == "svg" else ("Software",))
        figure.savefig(path, format=file_format, dpi=_DOTS_PER_INCH, metadata=nothing)


def _draw_panels(curve: _Curve, figure: Figure) -> None:
    taken, fitting, ranks = figure.subplots(1, 3)
    figure.suptitle(_title(curve))
    _draw_bytes(taken, curve)
    _draw_requests(fitting, curve)
    _draw_ranks(ranks, curve)
    for axes in (taken, fitting, ranks):
        # Below the panel it can cover nothing.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _title(curve: _Curve) -> str:
    server, layout = curve.capacity.server, curve.capacity.layout
    num_ranks = server.scenario.tensor_parallel_size * server.scenario.pipeline_parallel_size
    where = f" on {num_ranks} × {server.gpu.name}" if server.gpu else f", {_count(num_ranks, 'rank')}"
    pool = f"a pool of {format_bytes(curve.pool_bytes)} ({layout.num_blocks:,} blocks) on each rank"
    return f"{server.model.name}{where}: {pool}"


def _draw_bytes(axes: Axes, curve: _Curve) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (_, admission), (_, decoding) = curve.series()
    _draw_both(axes, curve.lengths, admission, decoding)
    axes.axhline(curve.pool_bytes, color=_INK, linewidth=1.2, label=f"the pool: {format_bytes(curve.pool_bytes)}")
    _scale_lengths(axes, curve)
    axes.set_yscale("log", base=2)
    low, high = min(decoding), max(curve.pool_bytes, *admission)
    missing = max(0.0, _LEAST_OCTAVES - float(np.log2(high / low))) / 2
    axes.set_ylim(low / 2 ** (0.3 + missing), high * 2 ** (0.5 + missing))
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda num_bytes, _: format_bytes(num_bytes)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("KV cache of one request, on each rank (bytes)")
    axes.set_title("What one request takes")


def _draw_requests(axes: Axes, curve: _Curve) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    admission, decoding = ([curve.pool_bytes / num_bytes for num_bytes in taken] for _, taken in curve.series())
    most = curve.capacity.server.limits.max_num_seqs
    _draw_both(axes, curve.lengths, admission, decoding)
    axes.axhline(most, color=_INK, linewidth=1.2, label=f"--max-num-seqs {most:,}")
    _scale_lengths(axes, curve)
    axes.set_yscale("log")
    low, high = min(most, *admission), max(most, *decoding)
    axes.set_ylim(low / 1.5, high * 1.7)
    few = bool(np.log10(high / low) < _FEW_DECADES)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=99))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda requests, _: f"{requests:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("Requests of that length in the pool at once")
    axes.set_title("How many fit")


def _draw_both(axes: Axes, lengths: Sequence[int], admission: Sequence[float], decoding: Sequence[float]) -> None:
    """Both series; where they are equal, the dashes of one lie on the broad line of the other."""
    axes.plot(lengths, admission, color=_SKY, linewidth=3.2, label=_ADMISSION)
    axes.plot(lengths, decoding, color=_VERMILION, linewidth=1.4, linestyle=(0, (4, 2)), label=_DECODING)


def _scale_lengths(axes: Axes, curve: _Curve) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    longest, served = curve.lengths[-1], curve.capacity.layout.max_model_len
    axes.axvline(served, color=_GREY, linewidth=1.2, linestyle=":", label=f"max_model_len {served:,}")
    axes.set_xscale("log", base=2)
    axes.set_xlim(curve.lengths[0], longest * 1.15)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7 if longest < _MANY_TOKENS else 5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("Length of the request, prompt and output (tokens)")


def _draw_ranks(axes: Axes, curve: _Curve) -> None:
    from matplotlib.ticker import FuncFormatter

    served = curve.capacity.server.scenario.tensor_parallel_size
    tokens = [size.capacity.layout.kv_cache_tokens if size.capacity else 0 for size in curve.sizes]
    is_served = [size.tensor_parallel_size == served for size in curve.sizes]
    for colour, label, chosen in ((_BLUE, "as asked", True), (_SKY, "other sizes", False)):
        places = [place for place, served_here in enumerate(is_served) if served_here is chosen]
        if places:
            axes.bar(places, [tokens[place] for place in places], width=0.6, color=colour, label=label)
    axes.set_ylim(0, 1.18 * max(1, *tokens))  # room above the bars for what is written there
    for place, size in enumerate(curve.sizes):
        _label_size(axes, place, size)
    axes.set_xlim(-0.6, len(curve.sizes) - 0.4)
    axes.set_xticks(range(len(curve.sizes)), [f"{size.tensor_parallel_size}" for size in curve.sizes])
    axes.grid(visible=False)  # the bars say how much they are
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_xlabel(f"Tensor-parallel size{_stated(curve.capacity.server)}")
    axes.set_ylabel("GPU KV cache size (tokens)")
    longest = {size.capacity.layout.max_model_len for size in curve.sizes if size.capacity}
    length = _count(longest.pop(), "token") if len(longest) == 1 else "the longest that fits"
    axes.set_title(f"KV cache size, and concurrency at {length}")


def _label_size(axes: Axes, place: int, size: _Size) -> None:
    """Above the bar what the server prints; where there is none, that it does not start."""
    if size.capacity is None:
        axes.annotate(
            "does not start", (place, 0), xytext=(0, 5), textcoords="offset points",
            ha="center", va="bottom", rotation=90, fontsize="small", color=_GREY,
        )  # fmt: skip
        return
    layout = size.capacity.layout
    tokens = _thousands(float(f"{layout.kv_cache_tokens:.3g}"))
    decimals = 2 if layout.max_concurrency < 1000 else 0
    axes.annotate(
        f"{tokens}\n{layout.max_concurrency:,.{decimals}f}x",
        (place, layout.kv_cache_tokens), xytext=(0, 3), textcoords="offset points",
        ha="center", va="bottom", fontsize="small",
    )  # fmt: skip


def _stated(server: Server) -> str:
    """What does not grow with the ranks, because it was stated."""
    scenario = server.scenario
    if scenario.num_gpu_blocks_override is not None:
        return f" ({scenario.num_gpu_blocks_override:,} blocks each)"
    if scenario.kv_cache_memory_bytes is not None:
        return f" ({format_bytes(scenario.kv_cache_memory_bytes)} on each rank)"
    return ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _thousands(value: float, _position: float | None = None) -> str:
    """1500 as 1.5k, 2e6 as 2M: short enough for a tick."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
