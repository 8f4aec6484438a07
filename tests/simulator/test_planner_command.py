"""`kvplan plan`: what it says, what it writes, and how it says no."""

import json
from pathlib import Path

import pytest

SMALL = (
    "plan", "llama-3.1-8b", "--request-rate", "8", "--input-len", "500", "--output-len", "40", "--num-requests", "60",
    "--seeds", "2", "--workers", "1", "--tp", "1", "--max-gpus", "4",
)  # fmt: skip
SLO = ("--slo", "ttft.p90=1s", "--slo", "tpot.p90=60ms")
GPUS = ("--gpu", "l40s", "--gpu", "a100-40gb=1.20", "--gpu", "l4=0.5")


@pytest.fixture
def planned(kvplan, tmp_path) -> tuple[str, dict]:
    """(what was printed, plan.json)."""
    done = kvplan(*SMALL, *SLO, *GPUS, "--out", "plan")
    assert (done.code, done.err) == (0, "")
    return " ".join(done.out.split()), json.loads((tmp_path / "plan" / "plan.json").read_text())


def test_a_plan_says_what_to_rent_and_why_and_comes_out_the_same_again(planned, kvplan, tmp_path):
    printed, plan = planned
    answer = plan["answer"]
    assert (answer["gpu"], answer["replicas"], answer["holds"]) == ("l40s", 1, True)
    assert printed.startswith("Rent 1 replica of llama-3.1-8b on l40s, 1 GPU in all: $1.09 an hour, $795.70 a month.")
    assert plan["sentences"][1].startswith("It holds: TTFT p90 ")
    assert {choice["name"]: choice["fate"] for choice in plan["choices"]} == {
        "llama-3.1-8b on l40s": "best",
        "llama-3.1-8b on a100-40gb": "holds",
        "llama-3.1-8b on l4": "walled",
    }
    assert [each["gpu"] for each in plan["next_best"]] == ["a100-40gb"]
    names = {path.relative_to(tmp_path / "plan").as_posix() for path in (tmp_path / "plan").rglob("*")}
    assert {"report.html", "fleets.png", "holds/summary.json", "holds/report.html"} <= names
    # A run of a single server can be explained.
    done = kvplan("explain", "plan/holds", "7")
    assert (done.code, done.out.split("\n")[0]) == (0, "Request 7")
    # The same question gives the same plan, and simulates nothing again.
    first = (tmp_path / "plan" / "plan.json").read_bytes()
    trials = {path: path.stat().st_mtime_ns for path in (tmp_path / "plan" / "trials").iterdir()}
    assert kvplan(*SMALL, *SLO, *GPUS, "--out", "plan").code == 0
    assert (tmp_path / "plan" / "plan.json").read_bytes() == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "plan" / "trials").iterdir()} == trials


def test_json_alone_on_standard_output(kvplan, tmp_path):
    done = kvplan(*SMALL, *SLO, "--gpu", "l40s", "--json", "--spare", "1")
    plan = json.loads(done.out)
    assert plan["answer"]["replicas"] == 2
    assert plan["sentences"][0] == (
        "Rent 2 replicas of llama-3.1-8b on l40s, 2 GPUs in all: $2.18 an hour, $1,591 a month."
        " 1 of them serves the traffic alone, so one may fail."
    )
    (folder,) = (tmp_path / "plans").iterdir()
    assert folder.name.startswith("llama-3.1-8b-")


def test_where_nothing_holds_it_names_the_wall_and_the_nearest_miss(kvplan, tmp_path):
    done = kvplan(*SMALL, "--slo", "tpot.p90=2ms", *GPUS, "--out", "plan")
    assert done.code == 1
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["sentences"] == [
        "No fleet of at most 4 GPUs meets TPOT p90 at most 2 ms.",
        "For 3 of 3 kinds of replica TPOT p90 is over its limit on an empty server, whatever their number.",
        "The nearest miss is llama-3.1-8b on a100-40gb: TPOT p90 is 15.2 ms on an empty server, over 2 ms.",
    ]


@pytest.mark.parametrize(
    ("model", "flags", "wall"),
    [
        (
            "llama-3.1-8b",
            ("--max-num-batched-tokens", "16", "--max-num-seqs", "256"),
            "the server does not start (--max-num-batched-tokens: must be at least --max-num-seqs 256, got 16)",
        ),
        (
            "llama-3.1-8b",
            ("--max-model-len", "2000000"),
            "the server does not start (--max-model-len: llama-3.1-8b has at most 131072, got 2000000)",
        ),
        ("llama-3.1-70b", (), "the weights do not fit"),
        ("llama-3.1-8b", ("--max-model-len", "512"), "the longest request does not fit"),
    ],
)
def test_where_no_server_can_serve_it_says_why(kvplan, tmp_path, model, flags, wall):
    done = kvplan(SMALL[0], model, *SMALL[2:], *SLO, *GPUS, *flags, "--out", "plan")
    assert done.code == 1
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["sentences"] == [
        "No fleet of at most 4 GPUs meets TTFT p90 at most 1 s, TPOT p90 at most 60 ms.",
        f"For 3 of 3 kinds of replica {wall}, whatever their number.",
    ]


def test_a_trace_is_planned_for_as_it_is(kvplan, tmp_path):
    rows = [{"timestamp": 300 * nth, "input_length": 400, "output_length": 20, "hash_ids": [nth]} for nth in range(40)]
    Path("trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--tp", "1", "--workers", "1", "--gpu", "l40s", "--trace", "trace.jsonl", "--out", "plan")
    done = kvplan("plan", "llama-3.1-8b", *flags, "--slo", "ttft=1s,tpot=50ms", "--slo-attainment", "0.95")
    assert (done.code, done.err) == (0, "")
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (plan["question"]["seeds"], plan["answer"]["runs"]) == ([0], 1)
    assert "Attained" in done.out


REFUSED = {
    "kvplan: --slo: unknown measure 'tftt'; did you mean ttft?": ("--slo", "tftt.p99=1s"),
    "kvplan: --gpu: mi300x has no price in the table: say what an hour costs, --gpu mi300x=2.50": (
        *SLO, "--gpu", "mi300x",
    ),
    "kvplan: --gpu: h200 must cost dollars an hour, a number of at least 0, got 'cheap'": (*SLO, "--gpu", "h200=cheap"),
    "kvplan: --tp: must be numbers of ranks from 1 to 8 such as 1,2,4, got '1,16'": (*SLO, "--tp", "1,16"),
    "kvplan: --max-gpus: must be at least 1, got 0": (*SLO, "--max-gpus", "0"),
    "kvplan: --spare: must be a number of replicas of at least 0, got -1": (*SLO, "--spare", "-1"),
    "kvplan: --seeds: must be at least 2, for an interval, got 1": (*SLO, "--seeds", "1"),
    "kvplan: --router: unknown router 'least-load'; did you mean 'least-loaded'?": (*SLO, "--router", "least-load"),
    "kvplan: --request-rate: makes requests up, so it does not go with --trace": (*SLO, "--trace", "trace.jsonl"),
    "kvplan: --slo-attainment: must be a share above 0 and up to 1, got 99": (
        "--slo", "ttft=1s", "--slo-attainment", "99",
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_a_mistake_is_one_line_and_nothing_is_written(kvplan, tmp_path, message):
    done = kvplan(*SMALL, *REFUSED[message], "--out", "plan")
    assert (done.code, done.out, done.err.strip()) == (2, "", message)
    assert not (tmp_path / "plan").exists()


def test_without_an_slo_there_is_nothing_to_plan_for(kvplan):
    done = kvplan("plan", "llama-3.1-8b")
    assert done.code == 2
    assert "--slo" in done.err


def test_an_unknown_model_is_named(kvplan):
    done = kvplan("plan", "lama-3.1-8b", *SLO)
    assert (done.code, done.err) == (2, 'kvplan: unknown model "lama-3.1-8b"; did you mean "llama-3.1-8b"?\n')
