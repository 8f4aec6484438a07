"""Notebooks are stories without logic: their cells run from top to bottom, and their outputs are small."""

import json
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 100_000


def name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_cells_run_in_order(path, tmp_path, monkeypatch):
    """As plain Python: a notebook that needs more than that has too much in it."""
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    names = {"__name__": "__main__"}
    with pd.option_context("display.width", 80):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_outputs_are_small(path):
    assert path.stat().st_size < MOST_BYTES
