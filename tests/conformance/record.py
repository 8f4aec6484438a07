"""Record what vLLM's own scheduler does in the conformance scenarios.

    python tests/conformance/record.py --oracle PATH_TO_vllm_oracle.py [--kinds full async-full by-hand ...]

runs with the interpreter that has vLLM and writes one `scenarios/NAME.json.gz` each: the scenario, with
either vLLM's row of every step and its summary, or the message with which it refuses to start. The files
come out the same every time. Two more uses: `--survey 50` shows what the first 50 seeds of each kind
would exercise, to choose the seeds of `RECORDED` by; `--serve` answers scenarios from standard input,
one JSON object a line, which is how `fuzz.py` asks.
"""

import argparse
import contextlib
import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":  # run by its path: the other modules are found from the root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.conformance.generate import ASYNC_KINDS, KINDS, scenario
from tests.conformance.scenarios.by_hand import BY_HAND

__all__ = ["FOLDER", "first_difference", "named_scenarios", "read"]

FOLDER = Path(__file__).with_name("scenarios")
MAX_STEPS = 4000
"""No scenario takes a quarter of it: beyond, vLLM preempts the same requests for ever."""
WALL_CLOCK = ("seconds", "requests_per_second", "steps_per_second")
"""What a summary says about the machine that it ran on."""

RECORDED: dict[str, tuple[int, ...]] = {
    "full": (10, 31, 54),
    "sliding": (23, 50, 51),
    "gemma3": (19, 26, 40, 61),
    "gpt-oss": (5, 37, 66),
    "llama4": (19, 34, 79),
    "chunked": (1, 8, 13),
    "jamba": (15, 45, 48, 57),
    "jamba-none": (8, 15, 46),
    "mamba": (11, 20, 27, 33),
    "mla": (10, 65, 76),
    "mla-mixed": (2, 56, 73),
    "mla-mamba": (12, 38, 69),
    "full-sliding-mamba": (29, 38, 75),
    "two-windows": (6, 35, 73),
    "full-chunked-sliding": (10, 26, 38),
    "unequal-heads": (9, 62, 68, 71),
    "unequal-types": (16, 57, 62),
    "two-states": (22, 27, 58),
    "uniform-type": (44, 60, 78),
    "hybrid-off": (6, 27, 40),
    "no-caching": (23, 28, 40),
    "retention": (5, 26, 70, 77),
    "priority": (3, 37, 39, 51),
    "watermark": (14, 35, 70),
    "long-prefill": (32, 59, 69),
    "tight": (59, 64, 72, 76),
    "no-reservation": (35, 61, 76),
    "hash-ids": (28, 57, 65),
    "remote-full": (9, 29, 39),
    "remote-windows": (4, 36, 51),
    "remote-chunks": (9, 17, 45),
    "remote-states": (2, 11, 49, 57),
    "remote-tight": (4, 27, 50, 53),
    "lent": (5, 11, 21, 25),
    "refused": (0, 1, 3, 4, 7, 12),
    "async-full": (1, 7),
    "async-sliding": (71, 78),
    "async-gemma3": (40, 49),
    "async-gpt-oss": (35, 41),
    "async-llama4": (33, 73),
    "async-chunked": (52, 64),
    "async-jamba": (51, 77),
    "async-jamba-none": (35, 48),
    "async-mamba": (17, 32),
    "async-mla": (20, 28),
    "async-mla-mixed": (31, 61),
    "async-mla-mamba": (40, 51),
    "async-full-sliding-mamba": (45, 50),
    "async-two-windows": (20, 57),
    "async-full-chunked-sliding": (64, 66),
    "async-unequal-heads": (17, 74),
    "async-unequal-types": (20, 48),
    "async-two-states": (41, 63),
    "async-uniform-type": (19, 48),
    "async-hybrid-off": (2, 15),
    "async-no-caching": (12, 36),
    "async-retention": (39, 48),
    "async-priority": (15, 60),
    "async-watermark": (33, 48),
    "async-long-prefill": (36, 43),
    "async-tight": (19, 37),
    "async-no-reservation": (40, 52),
    "async-hash-ids": (9, 46),
    "async-remote-full": (5, 30),
    "async-remote-windows": (6, 38),
    "async-remote-chunks": (41, 49),
    "async-remote-states": (7, 11, 44),
    "async-remote-tight": (30, 36, 58),
    "async-lent": (23, 29, 40),
    "async-refused": (0, 2, 3),
}


def named_scenarios(kinds: list[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every scenario that is recorded, with its name; only of some kinds if asked ("by-hand" is one)."""
    for kind, seeds in RECORDED.items():
        if kinds is None or kind in kinds:
            for seed in seeds:
                yield f"{kind}-{seed}", scenario(kind, seed)
    if kinds is None or "by-hand" in kinds:
        yield from BY_HAND.items()


def surveyed(kinds: list[str] | None, seeds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first so many scenarios of each kind, to choose from."""
    for kind in kinds or (*KINDS, *ASYNC_KINDS):
        for seed in range(seeds):
            yield f"{kind}-{seed}", scenario(kind, seed)


def read(path: Path) -> dict[str, Any]:
    """One recorded file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        recorded: dict[str, Any] = json.load(file)
    return recorded


def write(name: str, recorded: dict[str, Any]) -> None:
    """One recorded file, the same bytes for the same content."""
    text = json.dumps(recorded, sort_keys=True, separators=(",", ":")) + "\n"
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def forget_others() -> None:
    """Delete files of scenarios that are recorded no more."""
    wanted = dict(named_scenarios())
    for path in FOLDER.glob("*.json.gz"):
        if path.name.removesuffix(".json.gz") not in wanted:
            path.unlink()


def simulated(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without the machine's own speed."""
    return {key: value for key, value in summary.items() if key not in WALL_CLOCK}


def first_difference(recorded: dict[str, Any], rows: list[dict[str, Any]], summary: dict[str, Any]) -> str | None:
    """Where our rows and summary first depart from vLLM's: the step, the field and both values."""
    rows, summary = json.loads(json.dumps([rows, simulated(summary)]))
    for step, (theirs, ours) in enumerate(zip(recorded["rows"], rows, strict=False)):
        if theirs != ours:
            return f"step {step}: {_unequal(theirs, ours)}"
    if len(rows) != len(recorded["rows"]):
        return f"steps: ours {len(rows)}, vLLM's {len(recorded['rows'])}"
    if recorded["summary"] != summary:
        return f"summary: {_unequal(recorded['summary'], summary)}"
    return None


def _unequal(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    for field in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(field, "nothing"), ours.get(field, "nothing")
        if a != b:
            return (
                f"{field}.{_unequal(a, b)}"
                if isinstance(a, dict) and isinstance(b, dict)
                else f"{field}: ours {b}, vLLM's {a}"
            )
    raise ValueError("nothing differs")


def load_oracle(path: Path) -> ModuleType:
    """The script that runs vLLM's scheduler, as a module."""
    spec = importlib.util.spec_from_file_location("vllm_oracle", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(oracle: ModuleType, asked: dict[str, Any]) -> dict[str, Any]:
    """vLLM's answer: "rows" and "summary", or why it "refused", or that it never got to an end ("unfinished")."""
    rows: list[dict[str, Any]] = []
    disconnect: Callable[[], None] | None = None
    try:
        config, kv = oracle.build(asked)
        if any("remote" in request or "lent" in request for request in asked["requests"]):
            from tests.conformance.connector import connect

            disconnect = connect(oracle, config, asked)
        summary = oracle.replay(config, kv, {**asked, "max_steps": MAX_STEPS}, rows.append)
    except (ValueError, NotImplementedError) as error:
        if rows:
            raise
        return {"refused": str(error).splitlines()[0]}
    except RuntimeError as error:
        return {"unfinished": str(error)}
    finally:
        if disconnect is not None:
            disconnect()
    return {"rows": rows, "summary": simulated({"capacity": oracle.capacity(config, kv), **summary})}


def exercised(recorded: dict[str, Any]) -> str:
    """One line on what a scenario does."""
    if "summary" not in recorded:
        return json.dumps(recorded)[:100]
    requests = recorded["summary"]["requests"].values()
    preemptions = sum(request["preemptions"] for request in requests)
    hits = sum(request["cached_tokens"] > 0 for request in requests)
    steps = recorded["summary"]["steps"]
    return f"{len(requests):3} requests {steps:4} steps {preemptions:3} preemptions {hits:3} prefix hits"


def serve(oracle: ModuleType, reply: int) -> None:
    """Answer scenarios from standard input, a line each, on that file descriptor."""
    with open(reply, "w", encoding="utf-8") as replies:
        for line in sys.stdin:
            replies.write(json.dumps(answer(oracle, json.loads(line))) + "\n")
            replies.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what vLLM's own scheduler does in the conformance scenarios.")
    parser.add_argument("--oracle", type=Path, required=True, help="vllm_oracle.py, which runs vLLM's scheduler")
    parser.add_argument("--kinds", nargs="+", help='only these kinds; those written by hand are "by-hand"')
    parser.add_argument("--survey", type=int, metavar="SEEDS", help="show what the first seeds of each kind exercise")
    parser.add_argument("--serve", action="store_true", help="answer scenarios from standard input")
    chosen = parser.parse_args()
    reply = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # vLLM logs to standard output
    with contextlib.redirect_stdout(sys.stderr):
        oracle = load_oracle(chosen.oracle)
        if chosen.serve:
            serve(oracle, reply)
            return
        named = surveyed(chosen.kinds, chosen.survey) if chosen.survey else named_scenarios(chosen.kinds)
        with open(reply, "w", encoding="utf-8") as screen:
            for name, asked in named:
                recorded = answer(oracle, asked)
                screen.write(f"{name:40} {exercised(recorded)}\n")
                if not chosen.survey:
                    write(name, {"scenario": asked, **recorded})
        if not chosen.survey:
            forget_others()


if __name__ == "__main__":
    main()
