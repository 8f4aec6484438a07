"""Build kvplan: pure Python, or with KVPLAN_COMPILE=1 the hot modules as C extensions, from the same source.

mypyc turns annotated Python into C, so there is nothing to keep in step: `pip install .` and
`KVPLAN_COMPILE=1 pip install .` give the same answers, the second about twice as fast. It needs a C compiler.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

COMPILED = (
    "kvcache/block_pool.py",
    "kvcache/document_pool.py",
    "kvcache/coordinator.py",
    "kvcache/hashing.py",
    "kvcache/host_tier.py",
    "kvcache/key_journal.py",
    "kvcache/ledger.py",
    "kvcache/manager.py",
    "kvcache/tally.py",
    "kvcache/two_level_pool.py",
    *sorted(map(str, Path("kvcache/managers").glob("*.py"))),
    "kvcache/watching.py",
    "simulator/batch.py",
    "simulator/contexts.py",
    "simulator/decodes.py",
    "simulator/kernel_step_times.py",
    "simulator/kernel_tables.py",
    "simulator/latency.py",
    "simulator/loading.py",
    "simulator/plan.py",
    "simulator/pool_bytes.py",
    "simulator/recorder.py",
    "simulator/replica.py",
    "simulator/request.py",
    "simulator/roofline.py",
    "simulator/running.py",
    "simulator/scheduler.py",
    "simulator/state_chunks.py",
    "simulator/step_scheduler.py",
    "simulator/waiting.py",
)
"""What a replay spends its time in."""

NEEDED_TO_COMPILE = ["mypy>=1.19", "numpy>=2.2", "pandas-stubs>=3.0", "pydantic>=2.11", "simpy>=4.1"]

wanted = os.environ.get("KVPLAN_COMPILE", "0") != "0"


def extensions() -> list[Extension]:
    """What to compile: nothing while pip still asks what is needed for that."""
    if not wanted or not {"bdist_wheel", "build_ext"} & set(sys.argv):
        return []
    from mypyc.build import mypycify

    return mypycify(list(COMPILED))


setup(setup_requires=NEEDED_TO_COMPILE if wanted else [], ext_modules=extensions())
