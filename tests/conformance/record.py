"""Record what vLLM's own scheduler does in the conformance scenarios.

    python tests/conformance/record.py --oracle PATH_TO_vllm_oracle.py [--kinds full async-full by-hand ...]

runs with the interpreter that has vLLM, and writes one `scenarios/NAME.json.gz` each: the scenario, with
either vLLM's row of every step and its summary or the message with which it refuses to start. Files are
the same on every run. `--survey 50` records nothing but shows what the first 50 seeds of each kind would
exercise, for choosing the seeds in `RECORDED`. `--serve` answers scenarios from standard input, one JSON
object a line: `fuzz.py` asks it.
"""

import argparse
import contextlib
import gzip
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.conformance.by_hand import BY_HAND  # noqa: E402  (run as a script, the root is put on the path first)
from tests.conformance.generate import ASYNC_KINDS, KINDS, scenario  # noqa: E402

__all__ = ["FOLDER", "RECORDED", "WALL_CLOCK", "answer", "load_oracle", "read"]
