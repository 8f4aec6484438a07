"""Look for scenarios in which we do not do what vLLM does.

    python -m tests.conformance.fuzz --oracle-python PATH --oracle PATH_TO_vllm_oracle.py --count 200 --seed 1000

Fresh scenarios of every kind in turn (or of `--kinds`) are answered by vLLM, in one process that lives as
long as the search, and by us. Exit status 1 if any answer differs; `--keep FOLDER` saves the first few.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

from kvcache.errors import KVCacheError
from tests.conformance.generate import ASYNC_KINDS, EXTRA_KINDS, KINDS, scenario
from tests.conformance.record import first_difference
from tests.conformance.replay import replay_rows

__all__ = ["Oracle", "difference"]

PATIENCE_S = 60
MOST_KEPT = 20


class Oracle:
    """vLLM's scheduler in a process of its own, asked one scenario at a time."""

    def __init__(self, python: Path, oracle: Path) -> None:
        record = Path(__file__).with_name("record.py")
        self._process = subprocess.Popen(
            [str(python), str(record), "--oracle", str(oracle), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """vLLM's answer, in the form of `record.answer`."""
        self._questions.write(json.dumps(asked) + "\n")
        self._questions.flush()
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"the oracle ended with status {self._process.wait()}; see record.py --serve")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._questions.close()
        self._process.wait()


def difference(asked: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """What we do otherwise than vLLM, in one line; None if nothing."""
    try:
        with _patience(PATIENCE_S):
            rows, summary = replay_rows(asked)
    except KVCacheError as error:
        return None if "refused" in answer else f"we refuse: {error}"
    except Exception as error:
        return f"we fail: {type(error).__name__}: {error}"
    if "refused" in answer:
        return f"vLLM refuses: {answer['refused']}"
    return first_difference(answer, rows, summary)


@contextmanager
def _patience(seconds: int) -> Iterator[None]:
    """End in a TimeoutError what does not end by itself."""

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def search(oracle: Oracle, named: Iterator[tuple[str, int]], keep: Path | None) -> bool:
    """Compare scenario by scenario and show the counts of each kind; whether all were identical."""
    counts: dict[str, Counter[str]] = {}
    kept = 0
    for kind, seed in named:
        asked = scenario(kind, seed)
        answer = oracle.ask(asked)
        count = counts.setdefault(kind, Counter())
        if "unfinished" in answer:  # vLLM itself runs in circles: nothing to compare with
            count["unfinished"] += 1
            continue
        found = difference(asked, answer)
        count["identical" if found is None else "different"] += 1
        if found is None:
            continue
        _say(f"{kind}-{seed}: {found}")
        if keep is not None and kept < MOST_KEPT:
            kept += 1
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{kind}-{seed}.json").write_text(json.dumps({"scenario": asked, **answer}))
    for kind, count in counts.items():
        _say(f"{kind:28}" + "".join(f"{count[word]:6} {word}" for word in ("identical", "different", "unfinished")))
    total = sum(counts.values(), Counter())
    _say(f"{'all':28}" + "".join(f"{total[word]:6} {word}" for word in ("identical", "different", "unfinished")))
    return total["different"] == 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for scenarios in which we do not do what vLLM does.")
    parser.add_argument("--oracle-python", type=Path, required=True, help="the interpreter that has vLLM")
    parser.add_argument("--oracle", type=Path, required=True, help="vllm_oracle.py, which runs vLLM's scheduler")
    parser.add_argument("--count", type=int, default=200, help="scenarios in all")
    parser.add_argument("--seed", type=int, default=1000, help="the first seed of each kind")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS + ASYNC_KINDS + EXTRA_KINDS, metavar="KIND")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="save the first scenarios that differ here")
    chosen = parser.parse_args()
    kinds = chosen.kinds
    named = ((kinds[n % len(kinds)], chosen.seed + n // len(kinds)) for n in range(chosen.count))
    oracle = Oracle(chosen.oracle_python, chosen.oracle)
    try:
        return 0 if search(oracle, named, chosen.keep) else 1
    finally:
        oracle.close()


if __name__ == "__main__":
    sys.exit(main())
