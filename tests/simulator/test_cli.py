"""The command line: what it prints, what it writes, and how it says no."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from simulator import Scenario
from simulator.cli import app

SIMULATE = ("simulate", "gemma-3-1b", "--gpu", "l4")
ROWS = [
    {"timestamp": 1000 * row, "input_length": 700, "output_length": 5, "hash_ids": [1, row + 2]} for row in range(4)
]


@pytest.fixture
def trace(tmp_path) -> Path:
    return write_trace(tmp_path / "trace.jsonl", *ROWS)


def write_trace(path: Path, *rows) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def all_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def options(command: str) -> dict:
    """The options of a command by the name of their setting."""
    return {option.name: option for option in typer.main.get_command(app).commands[command].params}


# Help


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_without_a_command_help_names_them_all(kvplan, arguments):
    shown = kvplan(*arguments)
    assert (shown.code, shown.err) == (0, "")
    assert all(
        f"\n  {command} " in shown.out
        for command in ("simulate", "capacity", "models", "waste", "sweep", "compare", "trace", "explain", "calibrate")
    )


@pytest.mark.parametrize(
    "command", ["simulate", "capacity", "models", "waste", "sweep", "compare", "trace", "explain", "calibrate"]
)
def test_help_says_what_a_command_and_each_of_its_flags_does(kvplan, command):
    shown = kvplan(command, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert all(flag in shown.out for option in options(command).values() for flag in option.opts if flag[0] == "-")
    assert [option.name for option in options(command).values() if not option.help] == []


@pytest.mark.parametrize("name", [name for name in Scenario.model_fields if name != "model"])
def test_every_setting_of_a_scenario_is_a_flag(kvplan, name):
    assert f"--{name.replace('_', '-')}" in options("simulate")[name].opts


def test_flags_that_are_not_given_leave_the_scenarios_defaults():
    defaults = {name: option.default for name, option in options("simulate").items() if name in Scenario.model_fields}
    assert Scenario(**{**defaults, "model": "gemma-3-1b"}) == Scenario(model="gemma-3-1b")


def test_help_comes_at_once():
    """Nothing heavy is loaded for it."""
    heavy = ["numpy", "pandas", "pyarrow", "simpy", "pydantic", "matplotlib", "jinja2"]
    program = f"import sys, simulator.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


# A run


def test_a_run_prints_its_summary_and_names_its_files(kvplan, trace, tmp_path):
    done = kvplan(*SIMULATE, "--trace", trace, "--out", "here", "--no-report")
    assert done.code == 0
    assert "4 of 4" in done.out
    assert all(f"{name}\n" in done.out for name in all_files(tmp_path) if name.startswith("here/"))


def test_a_run_writes_summary_tables_and_report(kvplan, trace, tmp_path):
    kvplan(*SIMULATE, "--trace", trace, "--out", "a/b")
    assert all_files(tmp_path / "a" / "b") == ["report.html", "requests.parquet", "steps.parquet", "summary.json"]


def test_a_run_goes_to_a_folder_of_its_own_unless_told_where(kvplan, trace, tmp_path):
    kvplan(*SIMULATE, "--trace", trace, "--no-report")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("gemma-3-1b-")


def test_no_report_writes_no_report(kvplan, trace, tmp_path):
    kvplan(*SIMULATE, "--trace", trace, "--out", "here", "--no-report")
    assert all_files(tmp_path / "here") == ["requests.parquet", "steps.parquet", "summary.json"]


def test_json_is_all_that_is_printed(kvplan, trace, tmp_path):
    done = kvplan(*SIMULATE, "--trace", trace, "--out", "here", "--no-report", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == json.loads((tmp_path / "here" / "summary.json").read_text())


def test_flags_reach_the_scenario(kvplan, trace):
    flags = {"-tp": "2", "--max-num-seqs": "3", "--kv-cache-dtype": "fp8", "--watermark": "0.01"}
    switches = ["--no-enable-prefix-caching", "--no-async-scheduling", "--no-scheduler-reserve-full-isl"]
    words = [word for flag in flags.items() for word in flag]
    done = kvplan(*SIMULATE, *words, *switches, "--trace", trace, "--no-report", "--json")
    scenario = json.loads(done.out)["scenario"]
    assert [scenario[name] for name in ("tensor_parallel_size", "max_num_seqs", "kv_cache_dtype", "watermark")] == [
        2, 3, "fp8", 0.01
    ]  # fmt: skip
    assert [scenario[name] for name in ("enable_prefix_caching", "async_scheduling", "scheduler_reserve_full_isl")] == [
        False, False, False
    ]  # fmt: skip


def test_only_so_many_requests_are_replayed(kvplan, trace):
    done = kvplan(*SIMULATE, "--trace", trace, "--num-requests", 3, "--no-report", "--json")
    assert json.loads(done.out)["requests"]["finished"] == 3


# A trace


def test_a_trace_is_described_and_drawn(kvplan, trace, tmp_path):
    done = kvplan("trace", trace)
    assert done.code == 0
    assert "ideal" in done.out.lower()
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


def test_a_description_in_json_is_all_that_is_printed(kvplan, trace, tmp_path):
    """Three of four prompts begin with a block of 512 tokens that the first one has."""
    done = kvplan("trace", trace, "--json", "--out", "pictures/mine.png")
    described = json.loads(done.out)
    assert (described["num_requests"], described["ideal_hit_tokens"]) == (4, 3 * 512)
    assert (done.err, all_files(tmp_path / "pictures")) == ("", ["mine.png"])


# Mistakes

WITH_TRACE = (*SIMULATE, "--trace")
MISTAKES = [
    (("simulat",), "No such command 'simulat'. Did you mean 'simulate'?"),
    (("simulate",), "Missing argument 'MODEL'"),
    (("simulate", "gemma-3-1"), 'unknown model "gemma-3-1"; did you mean "gemma-3-1b"?'),
    (("simulate", "gemma-3-1b", "--gpu", "h10"), 'unknown gpu "h10"; did you mean "h100"?'),
    (("simulate", "gemma-3-1b"), "--gpu: is needed"),
    ((*SIMULATE, "-tp", "3"), "--tensor-parallel-size: the heads or channels of gemma-3-1b cannot be split evenly"),
    ((*SIMULATE, "--rate-scale", "inf"), "--rate-scale: must be a finite number, got inf"),
    ((*SIMULATE, "--step-time-s", "inf"), "--step-time-s: must be a finite number, got inf"),
    ((*SIMULATE, "--request-rate", "1", "--input-len", "2000000000", "--output-len", "9"), "2000000000"),
    ((*SIMULATE, "--input-len", "9"), "--input-len: goes with --request-rate only"),
    ((*SIMULATE, "--kv-cache-memory-bytes", "1e400"), "--kv-cache-memory-bytes: must be a number of bytes"),
    ((*SIMULATE, "--kv-cache-memory-bytes", "1.2.3"), "--kv-cache-memory-bytes: must be a number of bytes"),
    ((*SIMULATE, "--num-gpu-blocks-override", "99999999999"), "--num-gpu-blocks-override: must be less than or equal"),
    ((*SIMULATE, "--max-model-len", "40000"), "--max-model-len: gemma-3-1b has at most 32768, got 40000"),
    ((*SIMULATE, "--max-num-seqs", "5000"), "--max-num-batched-tokens: must be at least --max-num-seqs 5000, got 2048"),
    ((*SIMULATE, "--out", ""), "--out: must name a folder"),
    ((*SIMULATE, "--max-num-sqs", "3"), "--max-num-sqs (Possible options: --max-num-seqs"),
    ((*SIMULATE, "--max-num-seqs"), "'--max-num-seqs' requires an argument"),
    ((*SIMULATE, "--max-num-seqs", "many"), "--max-num-seqs"),
    ((*SIMULATE, "--max-num-seqs", "0"), "--max-num-seqs: must be greater than or equal to 1, got 0"),
    ((*SIMULATE, "--scheduling-policy", "fcf"), "got 'fcf'; did you mean 'fcfs'?"),
    ((*SIMULATE, "--prefix-cache-retention-interval", "100"), "must be a multiple of 16 tokens, got 100"),
    ((*SIMULATE, "--num-gpu-blocks-override", "20"), "; the longest that fits is about 16 tokens"),
    (("simulate", "gemma-3-27b", "--gpu", "l4"), "--tensor-parallel-size 4 would fit"),
    ((*SIMULATE, "--request-rate", "4"), "--request-rate: needs --input-len and --output-len beside it"),
    ((*WITH_TRACE, "trace.jsonl", "--request-rate", "4"), "--request-rate: makes requests up"),
    ((*WITH_TRACE, "trace.json"), 'trace.json: no such file; did you mean "trace.jsonl"?'),
    ((*WITH_TRACE, "folder"), "folder: cannot be read (Is a directory)"),
    ((*WITH_TRACE, "empty.jsonl"), "empty.jsonl: is empty"),
    ((*WITH_TRACE, "negative.jsonl"), 'row 3, field "input_length": must be a non-negative whole number, got -3'),
    ((*WITH_TRACE, "broken.jsonl"), "broken.jsonl, row 3: is not valid JSON"),
    ((*WITH_TRACE, "trace.jsonl", "--out", "empty.jsonl"), "--out: empty.jsonl cannot be made a folder"),
    ((*WITH_TRACE, "trace.jsonl", "--out", "empty.jsonl/run"), "--out: empty.jsonl/run cannot be"),
    (("trace",), "Missing argument 'FILE'"),
    (("trace", "nothing.csv"), "nothing.csv: no such file"),
    (("trace", "negative.jsonl"), 'row 3, field "input_length": must be a non-negative whole number, got -3'),
    (("trace", "trace.jsonl", "--block-size", "0"), "--block-size: must be at least 1 token, got 0"),
    (("trace", "trace.jsonl", "--out", "empty.jsonl/a.png"), "--out: empty.jsonl/a.png cannot be written"),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_is_written(kvplan, trace, tmp_path, arguments, said):
    write_trace(tmp_path / "negative.jsonl", *ROWS[:2], {**ROWS[2], "input_length": -3}, ROWS[3])
    write_trace(tmp_path / "broken.jsonl", *ROWS[:2], '{"timestamp": 2000, "inp', ROWS[3])
    write_trace(tmp_path / "empty.jsonl")
    (tmp_path / "folder").mkdir()
    before = all_files(tmp_path)
    refused = kvplan(*arguments)
    assert (refused.code, refused.out, all_files(tmp_path)) == (2, "", before)
    (line,) = refused.err.splitlines()
    assert line.startswith("kvplan: ")
    assert said in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_folder_without_permission_is_a_mistake_too(kvplan, trace, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    refused = kvplan(*SIMULATE, "--trace", trace, "--out", "closed/run")
    assert refused.code == 2
    assert "--out: closed/run cannot be made a folder: Permission denied" in refused.err


def test_the_installed_command_says_no_without_a_traceback(tmp_path):
    """As a shell sees it."""
    program = [sys.executable, "-c", "from simulator.cli import main; main()", "simulate", "llama-9"]
    refused = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith('kvplan: unknown model "llama-9"')
