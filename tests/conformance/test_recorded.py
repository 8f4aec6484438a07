"""Our scheduler and allocator do step for step what vLLM's did in the recorded scenarios.

`record.py` made the files; each holds a scenario and vLLM's answer to it.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvcache.errors import KVCacheError
from tests.conformance.generate import ASYNC_KINDS, KINDS
from tests.conformance.record import FOLDER, first_difference, named_scenarios, read
from tests.conformance.replay import replay_rows

FILES = sorted(FOLDER.glob("*.json.gz"))


@cache
def recorded(path: Path) -> dict[str, Any]:
    return read(path)


def name(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


ANSWERED = [path for path in FILES if "summary" in recorded(path)]
REFUSED = [path for path in FILES if "refused" in recorded(path)]


@pytest.mark.parametrize("path", ANSWERED, ids=name)
def test_every_step_is_vllms(path: Path) -> None:
    rows, summary = replay_rows(recorded(path)["scenario"])
    difference = first_difference(recorded(path), rows, summary)
    assert difference is None


@pytest.mark.parametrize("path", REFUSED, ids=name)
def test_what_vllm_refuses_is_refused(path: Path) -> None:
    with pytest.raises(KVCacheError):
        replay_rows(recorded(path)["scenario"])


def test_recorded_scenarios_can_be_made_again() -> None:
    """What is recorded is what the generator makes today, so it can be recorded anew."""
    assert {name(path): recorded(path)["scenario"] for path in FILES} == dict(named_scenarios())


def test_every_kind_is_recorded() -> None:
    names = [name(path) for path in FILES]
    assert [kind for kind in KINDS + ASYNC_KINDS if not any(n.startswith(f"{kind}-") for n in names)] == []


def test_the_recorded_set_is_large_and_preempts_a_lot() -> None:
    at_once = [path for path in ANSWERED if not name(path).startswith("async-")]
    overlapped = [path for path in ANSWERED if name(path).startswith("async-")]
    assert len(at_once) >= 100
    assert len(overlapped) >= 60
    for paths in (at_once, overlapped):
        assert sum(preempts(path) for path in paths) > len(paths) / 2
        assert sum(hits(path) for path in paths) > len(paths) / 2


def preempts(path: Path) -> bool:
    return any(row["preempted"] for row in recorded(path)["rows"])


def hits(path: Path) -> bool:
    return any(request["cached_tokens"] for request in recorded(path)["summary"]["requests"].values())
