"""The pages say what is so: their examples run, and what they name exists."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from models_configs import list_models
from models_configs.families import FAMILIES
from simulator import Scenario, simulate
from simulator.hardware import GPUS
from simulator.serve_command import MEANINGS
from tests.conformance.generate import KINDS
from tests.conformance.record import FOLDER, read
from tests.docs.pages import ROOT, blocks, commands, run_command, run_python, shows, write_files

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
CODE = [path for folder in ("kvcache", "simulator", "tests/kvcache") for path in (ROOT / folder).rglob("*.py")]
MOST_PICTURE_BYTES = 150_000


def name(page: Path) -> str:
    return page.name


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to run examples in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text_of(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def code_words(page: Path) -> Iterator[str]:
    """What stands between backticks in a page's text."""
    return (match[1] for match in re.finditer(r"`([^`\n]+)`", text_of(page)))


def anchors(page: Path) -> list[str]:
    """What links into a page may name: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def table_under(page: Path, heading: str) -> list[str]:
    """The names in the first column of the table that follows a heading or bold words."""
    lines = page.read_text(encoding="utf-8").split(heading, 1)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows += re.findall(r"`([^`]+)`", line.split("|")[1])
    return rows


# ------------------------------------------------------------------------------------------------ examples


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_examples_run(page, folder):
    names = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_print_what_the_page_shows(page, folder):
    """`python -m tests.docs.pages README.md` brings a page up to date."""
    write_files(page, folder)
    for block in blocks(page):
        for command, expected in commands(block):
            printed = run_command(command, folder)
            assert shows(expected, printed), f"{page.name}: {command} prints\n{printed}"


def test_the_scripts_of_the_readme_exist():
    scripts = {word for block in blocks(README) for word in re.findall(r"^scripts/\w+", block.text, re.MULTILINE)}
    assert sorted(scripts) == ["scripts/demo", "scripts/test"]
    assert all((ROOT / script).is_file() for script in scripts)


# --------------------------------------------------------------------------------------------------- names


@cache
def flags() -> set[str]:
    """All that the command line knows."""
    commands = ("simulate", "plan", "capacity", "models", "waste", "sweep", "compare", "calibrate", "validate")
    helps = (run_command(f"kvplan {command} --help", ROOT) for command in commands)
    return set(re.findall(r"--[\w-]+", " ".join(helps)))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        linked = page.parent / file if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page):
    packages = ("docs/", "kvcache/", "models_configs/", "notebooks/", "scripts/", "simulator/", "tests/", "workloads/")
    missing = [word for word in code_words(page) if word.startswith(packages) and not (ROOT / word).exists()]
    assert [word for word in missing if " " not in word] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_flags_that_are_named_exist(page):
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text(encoding="utf-8")))
    assert named - flags() - MEANINGS.keys() == set()  # kvplan's, or vLLM's in a `vllm serve` line


def test_the_readme_names_every_flag():
    named = set(re.findall(r"--[\w-]+", README.read_text(encoding="utf-8")))
    assert flags() - named == {"--no-spread-ticks"}


def test_the_readme_counts_the_models_and_names_every_gpu():
    words = list(code_words(README))
    assert f"{len(list_models())} models of {len(FAMILIES)} families" in README.read_text(encoding="utf-8")
    assert [gpu.name for gpu in GPUS if gpu.name not in words] == []


@pytest.mark.parametrize("table", ["requests", "steps"])
def test_the_readme_names_every_column_of_a_run_folder(table):
    result = simulate(Scenario(model="llama-3.1-8b", gpu="l4", max_model_len=8192, num_requests=2))
    assert sorted(table_under(README, f"**{table}.parquet**")) == sorted(getattr(result, table).columns)


def test_every_invariant_has_its_line():
    raised = {
        name
        for path in CODE
        for name in re.findall(r'InvariantError\(\s*f?"([a-z-]+)', path.read_text(encoding="utf-8"))
    }
    page = ROOT / "docs" / "invariants.md"
    sections = (
        "## Of the pool",
        "## Of the host tier",
        "## Of the memory ledger",
        "## Of block tables",
        "## Of the simulation",
        "## Of a fleet",
        "### Of prefill and decode replicas",
    )
    assert {name for section in sections for name in table_under(page, section)} == raised


def test_pictures_are_small():
    pictures = [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".png", ".svg"}]
    assert pictures
    assert all(path.stat().st_size < MOST_PICTURE_BYTES for path in pictures)


# ------------------------------------------------------------------------------------------------- figures


def count_recorded() -> dict[str, list[int]]:
    """The rows of validation.md's table: synchronous, asynchronous."""
    drawn = [f"{mode}{kind}-" for kind in KINDS for mode in ("", "async-")]
    counts: dict[str, list[int]] = {}

    def add(row: str, is_async: bool, count: int) -> None:
        counts.setdefault(row, [0, 0])[is_async] += count

    for path in sorted(FOLDER.glob("*.json.gz")):
        recorded, is_async = read(path), path.name.startswith("async-")
        if "refused" in recorded:
            add("refused", is_async, 1)
            continue
        is_drawn = any(re.fullmatch(rf"{kind}\d+\.json\.gz", path.name) for kind in drawn)
        requests = recorded["summary"]["requests"].values()
        add(f"answered: {'drawn at random' if is_drawn else 'written by hand'}", is_async, 1)
        add("steps", is_async, len(recorded["rows"]))
        add("requests", is_async, len(requests))
        add("preemptions", is_async, sum(request["preemptions"] for request in requests))
        add("scenarios with preemptions", is_async, any(row["preempted"] for row in recorded["rows"]))
        add("scenarios with prefix hits", is_async, any(request["cached_tokens"] for request in requests))
    return counts


def test_conformance_is_counted_right():
    validation, readme = (page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "validation.md", README))
    counts = count_recorded()
    for row, (at_once, overlapped) in counts.items():
        assert f"| {row} | {at_once:,} | {overlapped:,} | {at_once + overlapped:,} |" in validation
    recorded = sum(sum(count) for row, count in counts.items() if row.startswith(("answered", "refused")))
    steps, requests, preemptions = (f"{sum(counts[row]):,}" for row in ("steps", "requests", "preemptions"))
    assert f"holds {recorded} recorded answers" in validation
    assert f"{recorded} scenarios are recorded" in readme
    assert f"{steps} steps, {requests} requests, {preemptions} preemptions" in " ".join(readme.split())


def test_random_programs_are_counted_right():
    from tests.kvcache.test_state_machine import CALLS, CONFIGURATIONS, PLANTED_BUGS

    text = " ".join((ROOT / "docs" / "invariants.md").read_text(encoding="utf-8").split())
    assert f"against {len(CONFIGURATIONS)} configurations" in text
    assert f"at least {CALLS:,} calls" in text
    assert f"each of {len(PLANTED_BUGS)} bugs" in text
