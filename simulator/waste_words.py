"""Static waste in words: a table for each model, and a ranking of those that vLLM pads too much."""

from collections.abc import Sequence

from rich.table import Table

from kvcache.waste import Waste
from simulator.static_waste import PUBLISHED, ModelWaste

__all__ = ["padding_ranking", "static_table"]

_PADDING_WORDS = {
    "padding_layers": "places without a layer",
    "page_padding": "attention pages",
    "state_padding": "states",
}


def static_table(waste: ModelWaste) -> Table:
    """Percent wasted, a row for each policy and a column for each length."""
    table = Table(box=None, pad_edge=False)
    table.add_column("Grouping", no_wrap=True)
    for heading in ("Groups", "Size", "Padding", *(f"{length:,}" for length in waste.lengths)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, grouped in waste.grouped.items():
        counts = len(grouped.groups), grouped.group_size, grouped.num_padding_layers
        pcts = (f"{abs(grouped.waste(length).wasted_pct):.1f}" for length in waste.lengths)
        table.add_row(name, *map(str, counts), *pcts)
    return table


def padding_ranking(wastes: Sequence[ModelWaste], threshold_pct: float) -> list[str]:
    """The models that vLLM pads by more than the threshold, the worst first."""
    worst = [(waste, most) for waste in wastes if (most := waste.worst_padding) and most.padding_pct > threshold_pct]
    if not worst:
        return [f"vLLM's padding is nowhere more than {threshold_pct:g} % of what a request holds."]
    worst.sort(key=lambda pair: -pair[1].padding_pct)
    lines = [f"Padding under {PUBLISHED} is unacceptable (more than {threshold_pct:g} % of what a request holds):"]
    return lines + [f"{nth:>3}. {_in_words(*pair, threshold_pct)}" for nth, pair in enumerate(worst, 1)]


def _in_words(waste: ModelWaste, most: Waste, threshold_pct: float) -> str:
    causes = [words for cause, words in _PADDING_WORDS.items() if most.causes[cause]]
    return (
        f"{waste.model.name}: {most.padding_pct:.1f} % at {most.num_tokens:,} tokens ({', '.join(causes)});"
        f" {waste.remedy(threshold_pct)}"
    )
