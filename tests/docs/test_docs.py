"""The pages say what is so: their examples run, and the names in them exist."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands, run_command, run_python, shows

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHEAP = ("kvplan ",)
"""Beginnings of commands that install nothing."""


def name(page: Path) -> str:
    return page.name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run examples in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_examples_run(page, folder):
    names = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, names)
