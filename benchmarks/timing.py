"""Run a command, and read what it says of itself: wall seconds, or the summary that a replay prints."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Finished", "run", "speed_of"]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has run."""

    wall_s: float
    stdout: str


def run(command: list[str]) -> Finished:
    """Run a command to its end. Raises RuntimeError with its last words if it fails."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # this tree, compiled or not
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
    stdout, stderr = process.communicate()
    wall_s = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {stderr.strip().splitlines()[-1:]}")
    return Finished(wall_s, stdout)


def speed_of(command: list[str], scenario: Path) -> dict[str, Any]:
    """The summary that `... speed SCENARIO` or `... --speed SCENARIO` prints last."""
    summary: dict[str, Any] = json.loads(run([*command, str(scenario)]).stdout.splitlines()[-1])
    return summary


OURS = [sys.executable, "-m", "tests.conformance.replay", "--speed"]


def kvplan() -> str:
    """The installed command beside this interpreter."""
    return str(Path(sys.executable).with_name("kvplan"))


def machine() -> str:
    """What runs the benchmark, in a line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    python = f"Python {sys.version.split()[0]}, kvplan {'pure Python' if is_pure() else 'compiled'}"
    return f"{model}, {os.cpu_count()} cores, {python}"


def is_pure() -> bool:
    """Whether this tree's hot modules are Python, not C extensions (`scripts/compile`)."""
    import kvcache.block_pool

    return str(kvcache.block_pool.__file__).endswith(".py")
