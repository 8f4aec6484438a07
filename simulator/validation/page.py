"""The page of `kvplan validate`: tables of errors in Markdown, with pictures beside them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from importlib.metadata import version

import pandas as pd

from simulator.validation.rtx4090 import Validation
from simulator.validation.sample_errors import group_errors

__all__ = ["rtx4090_section", "sample_section", "title"]

MEASURES = (("tpot", "TPOT"), ("ttft", "TTFT"))


def title() -> str:
    """What was run, and when."""
    return f"# Validation\n\n{date.today().isoformat()}, kvplan {version('kvplan')}: `kvplan validate`.\n"


def rtx4090_section(found: Mapping[str, Validation], picture: str) -> str:
    """Each figure of the run as measured, and its error with each way to step times."""
    first = next(iter(found.values()))
    rows = [("", "measured", *found)]
    for number, measure in enumerate(first.measures):
        errors = (f"{each.measures[number].error:+.1%}" for each in found.values())
        rows.append((measure.name, f"{measure.measured:,.4g} {measure.unit}", *errors))
    rows.append(("Preemptions", "not known", *(f"{each.num_preemptions:,}" for each in found.values())))
    return "\n".join(
        ["## One run on an RTX 4090\n", *_table(rows), "", f"![Running requests and KV cache]({picture})\n"]
    )


def sample_section(
    step_times: str,
    table: pd.DataFrame,
    left_out: Mapping[str, int],
    refused: Mapping[str, int],
    pictures: Sequence[tuple[str, str]],
) -> str:
    """Errors on the rows that no constant was fitted on, and why rows are missing."""
    tested = table[~table["is_fitted_on"]]
    lines = [
        f"## Closed loops, `--step-times {step_times}`\n",
        f"{len(table):,} rows, {len(tested):,} of them without the tenth that constants were fitted on. Errors are of the"
        " latter.\n",
    ]
    for measure, name in MEASURES:
        lines += [f"### {name}\n", *_table(_error_rows(tested, measure)), ""]
    reasons = [*left_out.items(), *((f"refused: {reason}", number) for reason, number in refused.items())]
    lines += ["### Rows left out\n", *_table([("why", "rows"), *((why, f"{number:,}") for why, number in reasons)]), ""]
    sources = table.groupby("step_times").size()
    lines += [
        "### Where step times are from\n",
        *_table([("", "rows"), *((str(s), f"{n:,}") for s, n in sources.items())]),
    ]
    lines += ["", *(f"![{text}]({file})\n" for text, file in pictures)]
    return "\n".join(lines)


def _error_rows(table: pd.DataFrame, measure: str) -> Iterator[tuple[str, ...]]:
    yield "", "rows", "median error", "p90", "bias"
    for group in group_errors(table, measure):
        yield group.name, f"{group.num_rows:,}", f"{group.median:.1%}", f"{group.p90:.1%}", f"{group.bias:+.1%}"


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|" + " --- |" * len(row)
