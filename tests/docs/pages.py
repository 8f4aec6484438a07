"""Find the examples of a Markdown page and run them.

A page's ```python blocks run one after another in one namespace, in an empty folder; a block with `>>>`
must print what it shows. In a ```console block the lines after `$ ` are commands, all others what they
print at a width of 100 columns; a line `...` stands for any lines. A block that names a file after its
language, as in ```json chat.jsonl, is that file.

    python -m tests.docs.pages README.md      writes what a page's examples print today into the page
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Block", "blocks", "commands", "run_command", "run_python", "shows", "write_files"]

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


def write_files(page: Path, folder: Path) -> None:
    """Write the blocks of a page that are files."""
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block of Python with these names; an error points into the page."""
    if ">>>" not in block.text:
        # Empty lines before it, so that a traceback has the page's line.
        exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), names)
        return
    example = doctest.DocTestParser().get_doctest(block.text, {}, block.page.name, str(block.page), block.line - 1)
    example.globs = names
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    runner.run(example, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    if block.language != "console":
        return []
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def run_command(command: str, folder: Path) -> str:
    """What a command prints in a folder, standard error included; without spaces at the ends of lines."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, "COLUMNS": "100", "PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.strip().splitlines())


def shows(expected: str, printed: str) -> bool:
    """Whether a command printed what the page says."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(f"{line}\n") for line in expected.splitlines())
    return re.fullmatch(pattern, printed) is not None


# Bringing a page up to date.


def _renewed_console(block: Block, folder: Path) -> str:
    if "\n...\n" in block.text:  # leaves something out
        return block.text
    return "".join(f"$ {command}\n{run_command(command, folder)}" for command, _ in commands(block))


def _renewed_python(block: Block, names: dict[str, Any]) -> str:
    if ">>>" not in block.text:
        run_python(block, names)
        return block.text
    text = []
    for part in doctest.DocTestParser().parse(block.text):
        if isinstance(part, str):
            text.append(part)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(part.source, str(block.page), "single"), names)
        prompts = [">>> ", *["... "] * part.source.count("\n")]
        lines = [prompt + line for prompt, line in zip(prompts, part.source.splitlines(), strict=False)]
        text.append("".join(f"{line.rstrip()}\n" for line in lines) + printed.getvalue())
    return "".join(text)


def update(page: Path) -> None:
    """Write what examples print into their blocks."""
    page = page.resolve()
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(page, Path(folder))
        for block in blocks(page):
            if block.language == "console":
                text = text.replace(block.text, _renewed_console(block, Path(folder)))
            elif block.language == "python":
                text = text.replace(block.text, _renewed_python(block, names))
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        update(Path(argument))
