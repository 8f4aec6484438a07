"""`kvplan sweep` from the outside: files, words, exit codes, and what is left when somebody stops it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from simulator.executors import ThisProcess
from tests.simulator.studies import SMALL, write_study

ROOT = Path(__file__).parents[2]
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""As in a terminal: what is started in the background is deaf to it, and so is what that starts."""
KVPLAN = (sys.executable, "-c", f"{HEARS_CTRL_C}; from simulator.cli import main; main()")
LONG = """
[base]
model = "llama-3.1-8b"
gpu = "l40s"
max-model-len = 4096
num-requests = 300
rate-scale = 20
[grid]
seed = [0, 1, 2, 3, 4]
max-num-seqs = [4, 64]
"""
"""Ten points: long enough to be stopped in the middle."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(kvplan, monkeypatch):
    """`kvplan sweep` without processes of its own, which would take most of the time."""
    monkeypatch.setattr("simulator.sweep_command.executors_at", lambda *_: ThisProcess())
    return lambda *arguments: kvplan("sweep", *arguments)


def start(folder: Path, file: Path) -> subprocess.Popen:
    """A study in a process of its own, whose first points have finished."""
    running = subprocess.Popen(
        [*KVPLAN, "sweep", str(file), "--workers", "2"], cwd=folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    for _ in range(600):
        if len(kept(folder)) >= 3 or running.poll() is not None:
            break
        time.sleep(0.05)
    assert running.poll() is None, running.communicate()
    return running


def kept(folder: Path) -> list[Path]:
    return list(folder.glob("studies/study/points/[0-9a-f]*.json"))


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but the points."""
    return {file.name: file.read_bytes() for file in folder.glob("studies/study/*.*")}


# ------------------------------------------------------------------------------------------ what it leaves behind


def test_a_study_leaves_its_table_its_report_and_every_point(sweep, folder):
    done = sweep(str(write_study(folder)))
    assert (done.code, done.err) == (0, "")
    assert sorted(contents(folder)) == ["report.html", "study.json", "table.csv", "table.parquet"]
    assert len(kept(folder)) == 6
    assert "All 6 points finished." in done.out
    assert done.out.rstrip().endswith("studies/study/report.html")


def test_the_table_is_tidy_and_the_same_in_both_formats(sweep, folder):
    sweep(str(write_study(folder)), "--no-report")
    with (folder / "studies/study/table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = pd.read_parquet(folder / "studies/study/table.parquet")
    assert [(row["block_size"], row["max_num_seqs"], row["status"]) for row in rows] == [
        (block, seqs, "finished") for block in ("16", "32") for seqs in ("1", "2", "8")
    ]
    assert list(table.columns) == list(rows[0])
    assert [float(row["ttft_p99_s"]) for row in rows] == table["ttft_p99_s"].tolist()
    assert not (folder / "studies/study/report.html").exists()


def test_json_is_all_of_it_and_nothing_else(sweep, folder):
    done = sweep(str(write_study(folder)), "--json", "--no-report")
    said = json.loads(done.out)
    assert said == json.loads((folder / "studies/study/study.json").read_text(encoding="utf-8"))
    assert said["axes"] == {"block_size": [16, 32], "max_num_seqs": [1, 2, 8]}
    assert said["shared"]["model"] == "llama-3.1-8b"
    assert said["prices"]["l40s"]["date"] == "2026-09-25"
    assert [point["status"] for point in said["points"]] == ["finished"] * 6
    assert list(said["narration"]) == [
        "What it found",
        "What binds",
        "What would change the answer",
        "What it cannot know",
    ]


class _Tags(HTMLParser):
    """Opened tags that are closed in the right order; what the page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.loaded += [
            value for name, value in attrs if name in {"src", "href"} and value and not value.startswith("#")
        ]
        if tag not in {"meta", "link", "br", "img", "path", "use", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag


def test_the_report_needs_nothing_else(sweep, folder):
    sweep(str(write_study(folder, SMALL.replace("[1, 2, 8]", "[1, 2]"))))
    text = (folder / "studies/study/report.html").read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert (tags.open, tags.loaded) == ([], [])
    assert text.count("<svg ") == 2
    assert "What it cannot know" in text


def test_prices_of_a_file_replace_known_ones(sweep, folder):
    (folder / "prices.toml").write_text("l40s = 10.9\n", encoding="utf-8")
    file = write_study(folder)
    first = json.loads(sweep(str(file), "--json", "--no-report").out)
    second = json.loads(sweep(str(file), "--prices", "prices.toml", "--json", "--no-report").out)
    costs = [[point["dollars_per_million_output_tokens"] for point in said["points"]] for said in (first, second)]
    assert costs[1] == pytest.approx([10 * cost for cost in costs[0]], rel=1e-4)


# --------------------------------------------------------------------------------------------------- stopping


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The files of LONG, run at once."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(
        [*KVPLAN, "sweep", str(write_study(folder, LONG)), "--workers", "1"], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return contents(folder)


def test_killed_in_the_middle_it_goes_on_to_the_same_files(kvplan, folder, uninterrupted):
    """kill -9: no file is half, the workers end too, finished points stay, and the rest gives the same bytes."""
    file = write_study(folder, LONG)
    running = start(folder, file)
    running.kill()
    running.communicate()
    before = {path: path.stat().st_mtime_ns for path in kept(folder)}
    assert 3 <= len(before) < 10
    done = kvplan("sweep", str(file), "--workers", "2")
    assert (done.code, done.err) == (0, "")
    assert contents(folder) == uninterrupted
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_ctrl_c_keeps_what_has_finished_and_says_how_to_go_on(folder):
    running = start(folder, write_study(folder, LONG))
    os.killpg(running.pid, signal.SIGINT)  # a terminal tells the workers, too
    out, err = running.communicate(timeout=20)
    num_kept = len(kept(folder))
    assert (running.returncode, out) == (130, "")
    assert err == (
        f"kvplan: stopped with {num_kept} of 10 points in studies/study; the same command goes on from there\n"
    )
    assert list(folder.glob("studies/study/points/.*")) == []


def test_damaged_points_are_named_and_redone(sweep, folder):
    file = write_study(folder)
    sweep(str(file), "--no-report")
    before = contents(folder)
    first, second, *_ = kept(folder)
    first.write_text(first.read_text(encoding="utf-8")[:100], encoding="utf-8")
    second.write_bytes(b"\xff\xfe")
    done = sweep(str(file), "--no-report")
    assert done.err == "kvplan: 2 of the points kept in studies/study/points are damaged and will be run again\n"
    assert contents(folder) == before


# --------------------------------------------------------------------------------------------------- saying no


def test_mistakes_stop_it_before_anything_is_made(sweep, folder):
    done = sweep(str(write_study(folder, SMALL.replace("l40s", "l50s").replace("[16, 32]", "[0]"))))
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[1:] == [
        '  [base] gpu: unknown gpu "l50s"; did you mean "l40s"?',
        "  [grid] block-size, value 1: must be greater than or equal to 1, got 0",
    ]
    assert [path.name for path in folder.iterdir()] == ["study.toml"]


def test_where_no_point_finishes_the_exit_code_is_1(sweep, folder):
    done = sweep(str(write_study(folder, SMALL.replace("8b", "70b"))))
    assert done.code == 1
    assert "0 of 6 points finished; 6 were refused." in done.out
    assert "of weights" in (folder / "studies/study/table.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        (["--workers", "0"], "--workers: must be at least 1, got 0"),
        (["--executor", "x"], "--executor: must be dask://HOST:PORT, the scheduler's address, got 'x'"),
        (["--max-points", "3"], "makes 6 points (2 × 3), more than 3; if so many are meant, say --max-points 6"),
        (["--prices", "none.toml"], "--prices: none.toml cannot be read: No such file or directory"),
        (["--out", ""], "--out: must name a folder, got '.'"),
        (["--out", "study.toml/x"], "--out: study.toml/x cannot be made a folder: "),
    ],
)  # fmt: skip
def test_options_that_are_none_are_refused(kvplan, folder, arguments, mistake):
    done = kvplan("sweep", str(write_study(folder)), *arguments)
    assert (done.code, done.out) == (2, "")
    assert mistake in done.err
