"""The page of `kvplan validate`: tables of errors in Markdown, with pictures beside them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from importlib.metadata import version

import pandas as pd

from simulator.validation.rtx4090 import Validation
from simulator.validation.sample_errors import GroupErrors, group_errors

__all__ = ["MEASURES", "error_cells", "measure_rows", "rtx4090_section", "sample_section", "title"]

MEASURES = (("tpot", "TPOT"), ("ttft", "TTFT"))


def title() -> str:
    """What was run, and when."""
    return f"# Validation\n\n{date.today().isoformat()}, kvplan {version('kvplan')}: `kvplan validate`.\n"


def rtx4090_section(found: Mapping[str, Validation], picture: str) -> str:
    """Each figure of the run as measured, and its error with each way to step times."""
    rows = [("", "measured", *found), *measure_rows(found)]
    rows.append(("Preemptions", "not known", *(f"{each.num_preemptions:,}" for each in found.values())))
    heading, image = "## One run on an RTX 4090\n", f"![Running requests and KV cache usage]({picture})\n"
    return "\n".join([heading, *_table(rows), "", image])


def measure_rows(found: Mapping[str, Validation]) -> Iterator[tuple[str, ...]]:
    """Of each figure its name, what was measured, and the error with each way to step times."""
    for same in zip(*(each.measures for each in found.values()), strict=True):
        yield same[0].name, f"{same[0].measured:,.4g} {same[0].unit}", *(f"{measure.error:+.1%}" for measure in same)


def error_cells(group: GroupErrors) -> tuple[str, str, str, str]:
    """How many rows, their median error, its 90th percentile and the bias."""
    return f"{group.num_rows:,}", f"{group.median:.1%}", f"{group.p90:.1%}", f"{group.bias:+.1%}"


def sample_section(
    step_times: str,
    table: pd.DataFrame,
    left_out: Mapping[str, int],
    refused: Mapping[str, int],
    pictures: Sequence[tuple[str, str]],
) -> str:
    """Errors on the rows that no constant was fitted on, and why rows are missing."""
    tested = table[~table["is_fitted_on"]]
    kept = f"{len(table):,} rows. Errors are of the {len(tested):,} on which no constant was fitted.\n"
    lines = [f"## Closed loops, `--step-times {step_times}`\n", kept]
    for measure, name in MEASURES:
        lines += [f"### {name}\n", *_table(_error_rows(tested, measure)), ""]
    reasons = {**left_out, **{f"refused: {reason}": number for reason, number in refused.items()}}
    lines += ["### Rows left out\n", *_table(_counts("why", reasons)), ""]
    lines += ["### Where step times are from\n", *_table(_counts("source", Counter(table["step_times"]))), ""]
    return "\n".join([*lines, *(f"![{text}]({file})\n" for text, file in pictures)])


def _counts(what: str, counted: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    yield what, "rows"
    yield from ((name, f"{number:,}") for name, number in counted.items())


def _error_rows(table: pd.DataFrame, measure: str) -> Iterator[tuple[str, ...]]:
    yield "", "rows", "median error", "p90", "bias"
    for group in group_errors(table, measure):
        yield group.name, *error_cells(group)


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|" + " --- |" * len(row)
