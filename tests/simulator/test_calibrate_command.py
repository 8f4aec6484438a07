"""`kvplan calibrate`: from what a server logged to step times of its own, and every way to get it wrong."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from models_configs import find_model
from simulator.calibration_file import read_calibration
from simulator.calibration_logs import TOKENS_PER_SPAN, read_bench_result, read_request_stamps
from simulator.calibration_steps import read_steps
from tests.simulator.measured_steps import ACHIEVED, roofline_of, steps
from tests.simulator.test_calibration_stamps import SERVED, WATCHED, served, traffic

HEADER = "prefill_tokens,prefill_context_tokens,num_prefills,decode_requests,decode_context_tokens,ms"
OF_A_SERVER = ("--model", "llama-3.1-8b", "--gpu", "h100-80gb")
OF_A_REPLAY = (
    "--model", "llama-3.1-8b", "--gpu", "l4", "--max-model-len", 4096, "--num-gpu-blocks-override", 420,
    "--max-num-batched-tokens", 1024,
)  # fmt: skip


def write_steps(path: Path, num_steps: int = 150) -> Path:
    server = roofline_of()(ACHIEVED)
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(HEADER.split(","))
        for batch in steps(num_steps):
            before = sum(computed for _, computed in batch.prefill_chunks)
            work = batch.num_prefill_tokens, before, len(batch.prefill_chunks), batch.num_decodes
            rows.writerow([*work, batch.decode_context_tokens, 1e3 * server.durations_s(batch)[0]])
    return path


def write_text(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_request_stamps(path: Path) -> Path:
    """As a server logs them, on a clock of its own; of those requests that were watched."""
    lines = []
    for row in traffic():
        stamps = served().stamps(row.request_id)
        if stamps is not None:
            times_s = stamps.arrival_s, stamps.scheduled_s, stamps.token_s[1], stamps.token_s[row.output_tokens]
            names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
            stamped = dict(zip(names, (1e4 + time_s for time_s in times_s), strict=True))
            lines.append(json.dumps({"input_toks": row.prompt_tokens, "output_toks": row.output_tokens} | stamped))
    return write_text(path, *lines)


def write_bench_result(path: Path) -> Path:
    """As a client saw it: one of the requests failed."""
    result: dict[str, list] = {
        "input_lens": [9],
        "output_lens": [0],
        "ttfts": [0.0],
        "itls": [[]],
        "start_times": [7.0],
    }
    for row in traffic():
        stamps = served().stamps(row.request_id)
        if stamps is not None:
            result["input_lens"].append(row.prompt_tokens)
            result["output_lens"].append(row.output_tokens)
            result["start_times"].append(50 + stamps.arrival_s)
            result["ttfts"].append(stamps.token_s[1] - stamps.arrival_s)
            result["itls"].append(np.diff(list(stamps.token_s.values())).tolist())
    return write_text(path, json.dumps(result))


# From measurements to step times


def test_steps_become_step_times_of_a_simulation(kvplan, tmp_path):
    steps_csv = write_steps(tmp_path / "steps.csv")
    fitted = kvplan("calibrate", steps_csv, *OF_A_SERVER, "--out", "h100.toml")
    assert (fitted.code, fitted.err) == (0, "")
    assert read_calibration(Path("h100.toml")).efficiencies.kv_bandwidth == pytest.approx(
        ACHIEVED.kv_bandwidth, rel=0.02
    )
    run = ("simulate", "llama-3.1-8b", "--gpu", "h100-80gb", "--num-requests", 20, "--no-report", "--json")
    ours, default = (
        json.loads(kvplan(*run, "--out", name, *chosen).out)["tpot_s"]["p50"]
        for name, chosen in (("a", ("--step-times", "h100.toml")), ("b", ()))
    )
    assert ours > 1.2 * default


def test_errors_and_figures_are_printed(kvplan, tmp_path):
    printed = kvplan("calibrate", write_steps(tmp_path / "steps.csv"), *OF_A_SERVER, "--out", "h100.toml").out
    assert [kind in printed for kind in ("prefill only", "decode only", "mixed")] == [True] * 3
    assert "scan_compute" in printed
    assert printed.splitlines()[-2:] == ["h100.toml", "h100.png"]


def test_json_is_all_that_is_printed(kvplan, tmp_path):
    printed = kvplan("calibrate", write_steps(tmp_path / "steps.csv"), *OF_A_SERVER, "--out", "h.toml", "--json").out
    figures = json.loads(printed)
    assert (figures["gpu"], figures["num_rows"], figures["measured"]) == ("h100-80gb", 150, "steps")


@pytest.mark.parametrize("write", [write_request_stamps, write_bench_result])
def test_stamps_become_step_times(kvplan, tmp_path, write):
    """What reached no log did not compete either: half of the requests are enough for a fifth."""
    file = write(tmp_path / ("log.json" if write is write_bench_result else "log.jsonl"))
    fitted = kvplan("calibrate", file, *OF_A_REPLAY, "--first", 30, "--out", "l4.toml")
    assert (fitted.code, fitted.err) == (0, "")
    found = read_calibration(Path("l4.toml"))
    assert found.measured == "request stamps"
    assert found.efficiencies.weight_bandwidth == pytest.approx(SERVED.weight_bandwidth, rel=0.2)


def test_a_model_that_was_not_measured_is_said(kvplan, tmp_path):
    kvplan("calibrate", write_steps(tmp_path / "steps.csv"), *OF_A_SERVER, "--out", "h100.toml")
    run = kvplan(
        "simulate", "gemma-3-1b", "--gpu", "h100-80gb", "--num-requests", 3, "--step-times", "h100.toml", "--no-report"
    )
    assert run.err == (
        "kvplan: step times: roofline as calibrated in h100.toml; fitted with model llama-3.1-8b, not gemma-3-1b,"
        " so it carries over in part\n"
    )


# What is read


def test_prompts_of_one_step_share_its_tokens(tmp_path):
    file = write_text(tmp_path / "steps.csv", HEADER, "1001,30,2,3,300,20")
    spans = read_steps(file, find_model("gemma-3-27b"))
    (batch,) = spans.batches
    assert (batch.prefill_chunks, batch.decode_context_tokens) == (((501, 15), (500, 15)), 300)
    assert batch.decode_window_tokens == (300,)
    assert spans.measured_s == pytest.approx(0.02)


def test_columns_may_be_left_out_and_stand_in_any_order(tmp_path):
    file = write_text(tmp_path / "s.csv", "seconds, decode_requests, decode_context_tokens, prefill_tokens", "2,0,0,64")
    spans = read_steps(file, find_model("llama-3.1-8b"))
    assert (spans.batches[0].prefill_chunks, spans.measured_s[0], spans.kinds) == (((64, 0),), 2.0, ["prefill only"])


def test_tokens_of_a_client_are_taken_by_the_dozen(tmp_path):
    run = read_bench_result(write_bench_result(tmp_path / "log.json"))
    name, request = next((row.request_id, row) for row in run.requests if row.output_tokens > 2 * TOKENS_PER_SPAN)
    marks = list(run.stamps[name].token_s)
    assert marks[:3] == [1, 1 + TOKENS_PER_SPAN, 1 + 2 * TOKENS_PER_SPAN]
    assert (marks[-1], len(run.requests)) == (request.output_tokens, len(WATCHED))


def test_chunks_of_several_tokens_leave_the_first_and_the_last(tmp_path):
    answer = {"input_lens": [9], "output_lens": [5], "ttfts": [1.0], "itls": [[0.2, 0.3]], "start_times": [7.0]}
    run = read_bench_result(write_text(tmp_path / "log.json", json.dumps(answer)))
    assert dict(run.stamps["0"].token_s) == {1: pytest.approx(1.0), 5: pytest.approx(1.5)}


def test_times_count_from_the_first_arrival(tmp_path):
    run = read_request_stamps(write_request_stamps(tmp_path / "log.jsonl"))
    assert run.requests[0].arrival_s == 0
    assert list(run.first(3)) == ["0", "1", "2"]


# Every way to get it wrong


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "steps.csv: column prefill_tokens is missing (found: none)"),
        ([HEADER], "steps.csv holds no steps: a header, and nothing below it"),
        (["prefil_tokens,ms", "1,1"], "steps.csv: unknown column 'prefil_tokens'; did you mean prefill_tokens?"),
        (["prefill_tokens,decode_requests,ms"], "steps.csv: column decode_context_tokens is missing (found: prefill"),
        ([HEADER.removesuffix(",ms")], "steps.csv: needs a column seconds or ms, one of them (found: prefill_tokens,"),
        ([f"{HEADER},seconds"], "steps.csv: needs a column seconds or ms, one of them (both are there)"),
        ([HEADER, "1,0,1,0,0,1", "1,0"], "steps.csv, row 2 has fewer values than the header"),
        ([HEADER, "1,0,1,0,0,1,1"], "steps.csv, row 1 has more values than the header"),
        ([HEADER, "0,0,0,0,0,1"], "steps.csv, row 1 computes nothing: neither prefill_tokens nor decode_requests"),
        (
            [HEADER, "1.5,0,1,0,0,1"],
            "steps.csv, row 1 column prefill_tokens must be a whole number, 0 or more, got '1.5'",
        ),
        (
            [HEADER, "-1,0,1,0,0,1"],
            "steps.csv, row 1 column prefill_tokens must be a whole number, 0 or more, got '-1'",
        ),
        ([HEADER, "9,0,0,0,0,1"], "steps.csv, row 1 column num_prefills must be 1 to prefill_tokens, 9, got 0"),
        ([HEADER, "9,0,10,0,0,1"], "steps.csv, row 1 column num_prefills must be 1 to prefill_tokens, 9, got 10"),
        ([HEADER, "9,0,1,0,70,1"], "steps.csv, row 1 has decode_context_tokens 70 without decode_requests"),
        ([HEADER, "0,5,0,2,70,1"], "steps.csv, row 1 has prefill_context_tokens without prefill_tokens"),
        ([HEADER, "0,0,0,2,70,0"], "steps.csv, row 1 column ms must be a positive number, got '0'"),
        ([HEADER, "0,0,0,2,70,nan"], "steps.csv, row 1 column ms must be a positive number, got 'nan'"),
        ([HEADER, "0,0,0,2,70,fast"], "steps.csv, row 1 column ms must be a positive number, got 'fast'"),
    ],
)
def test_wrong_steps_are_one_line(kvplan, lines, problem):
    write_text(Path("steps.csv"), *lines)
    refused = kvplan("calibrate", "steps.csv", *OF_A_SERVER, "--out", "out.toml")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert refused.err.startswith(f"kvplan: {problem}")
    assert [path.name for path in Path().iterdir()] == ["steps.csv"]


REQUEST = {"input_toks": 9, "output_toks": 5, "queued_ts": 1.0, "first_token_ts": 2.0, "last_token_ts": 3.0}
ANSWER = {"input_lens": [9], "output_lens": [5], "ttfts": [1.0], "itls": [[0.2, 0.3]], "start_times": [7.0]}


def without(record: dict, name: str) -> dict:
    return {key: value for key, value in record.items() if key != name}


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("log.jsonl", "", "log.jsonl holds no request that was served"),
        ("log.jsonl", "{", "log.jsonl, line 1 is not JSON:"),
        ("log.jsonl", "[]", "log.jsonl, line 1 is not a JSON object"),
        ("log.jsonl", without(REQUEST, "queued_ts"), "log.jsonl, line 1: queued_ts is missing (found: input_toks, "),
        ("log.jsonl", REQUEST | {"input_toks": 0}, "log.jsonl, line 1: input_toks must be a whole number of tokens"),
        ("log.jsonl", REQUEST | {"queued_ts": "now"}, "log.jsonl, line 1: queued_ts must be a number of seconds"),
        ("log.jsonl", REQUEST | {"queued_ts": 5}, "log.jsonl, line 1: first_token_ts is before queued_ts: are they of"),
        (
            "log.json",
            without(ANSWER, "itls"),
            "log.json: has no list itls: it takes `vllm bench serve --save-detailed`",
        ),
        ("log.json", ANSWER | {"ttfts": []}, "log.json: its lists are not of one length: input_lens 1, output_lens 1,"),
        ("log.json", ANSWER | {"itls": [["x"]]}, "log.json, request 1: itls must be a list of seconds"),
        ("log.json", ANSWER | {"output_lens": [0]}, "log.json holds no request that was served"),
        ("log.txt", "", "log.txt: must end in .csv (steps), .jsonl (request stamps) or .json (vllm bench serve)"),
        ("log.jsonl", REQUEST | {"input_toks": 9000}, "none of the measured requests is served in the replay"),
    ],
)
def test_wrong_stamps_are_one_line(kvplan, file, content, problem):
    write_text(Path(file), content if isinstance(content, str) else json.dumps(content))
    refused = kvplan("calibrate", file, *OF_A_REPLAY, "--out", "out.toml")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert refused.err.startswith(f"kvplan: {problem}")
    assert [path.name for path in Path().iterdir()] == [file]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--model", "llama-3.1-8b"), "--gpu: is needed: efficiencies are parts of its peaks"),
        ((*OF_A_SERVER, "--out", "out.json"), "--out: must name a file that ends in .toml, got 'out.json'"),
        ((*OF_A_SERVER, "--first", 5), "--first: goes with request stamps, which are replayed; steps stand for"),
        ((*OF_A_SERVER, "--max-num-seqs", 5), "--max-num-seqs: goes with request stamps, which are replayed;"),
        ((*OF_A_SERVER, "--first", 0), "--first: must be at least 1 request, got 0"),
        (("--model", "llama-3.1-9b", "--gpu", "l4"), 'unknown model "llama-3.1-9b"; did you mean "llama-3.1-8b"?'),
    ],
)
def test_wrong_flags_are_one_line(kvplan, flags, problem):
    write_steps(Path("steps.csv"), 5)
    refused = kvplan("calibrate", "steps.csv", "--out", "out.toml", *flags)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert refused.err.startswith(f"kvplan: {problem}")
