"""Find the examples of a Markdown page and run them.

A page's ```python blocks run one after another in one namespace, in an empty folder; a block with `>>>`
must print what it shows. In a ```console block the lines after `$ ` are commands, all others what they
print at a width of 100 columns; a line `...` stands for any lines. A block that names a file after its
language, as in ```json chat.jsonl, is that file.
"""

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Block", "blocks", "commands", "run_command", "run_python", "shows"]

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)(?: +(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    """Of its first line in the page."""
    language: str
    file: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start(3)) + 1, match[1], match[2], match[3])
        for match in _BLOCK.finditer(text)
    ]


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block of Python with these names; an error points into the page."""
    if ">>>" not in block.text:
        # Empty lines before it, so that a traceback has the page's line.
        exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)
        return
    example = doctest.DocTestParser().get_doctest(block.text, {}, block.page.name, str(block.page), block.line - 1)
    example.globs = names
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.FAIL_FAST)
    said: list[str] = []
    runner.run(example, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def run_command(command: str, folder: Path) -> str:
    """What a command prints in a folder, standard error included."""
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "COLUMNS": "100", "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )  # fmt: skip
    return done.stdout


def shows(expected: str, printed: str) -> bool:
    """Whether a command printed what the page says, trailing spaces apart."""
    lines = [line.rstrip() for line in expected.rstrip().splitlines()]
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in lines)
    text = "".join(line.rstrip() + "\n" for line in printed.rstrip().splitlines())
    return re.fullmatch(pattern, text) is not None
