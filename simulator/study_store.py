"""Outcomes that a study has already: a file for each point, named by its hash, written whole or not at all."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from simulator.run_folder import write_whole
from simulator.scenario import ScenarioError
from simulator.study_point import Status

__all__ = ["PointStore"]


@dataclass(frozen=True)
class PointStore:
    """A folder of outcomes. What is in a file counts only if the file is whole and its own."""

    folder: Path

    def open(self) -> None:
        """Make the folder. Raises ScenarioError where that is not possible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ScenarioError(f"--out: {self.folder} cannot be made a folder: {error.strerror}") from None

    def load(self, keys: Iterable[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """(outcomes by key, keys whose file is damaged); one that broke down has none: it is tried again."""
        outcomes: dict[str, dict[str, Any]] = {}
        damaged: list[str] = []
        for key in dict.fromkeys(keys):
            try:
                content = self._path(key).read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ScenarioError(f"--out: {self._path(key)} cannot be read: {error.strerror}") from None
            outcome = _outcome_in(content, key)
            if outcome is None:
                damaged.append(key)
            elif outcome["status"] != "failed":
                outcomes[key] = outcome
        return outcomes, damaged

    def save(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Keep an outcome. Raises ScenarioError where the disk does not take it."""
        text = json.dumps({"key": key, "sha256": _digest_of(key, outcome), "outcome": outcome}, indent=1) + "\n"
        try:
            write_whole(self._path(key), lambda path: path.write_text(text, encoding="utf-8"))
        except OSError as error:
            raise ScenarioError(f"--out: {self._path(key)} cannot be written: {error.strerror}") from None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _outcome_in(content: bytes, key: str) -> dict[str, Any] | None:
    """What a file says; None: it is damaged, or another point's."""
    try:
        said = json.loads(content)
        outcome = said["outcome"]
        is_whole = (said["key"], said["sha256"]) == (key, _digest_of(key, outcome))
        return outcome if is_whole and outcome["status"] in get_args(Status) else None
    except (ValueError, KeyError, TypeError):
        return None


def _digest_of(key: str, outcome: Any) -> str:
    text = json.dumps([key, outcome], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
