"""TOML that a person wrote, or one line of what is wrong with the file."""

import tomllib
from pathlib import Path
from typing import Any

from simulator.scenario import ScenarioError

__all__ = ["read_toml"]


def read_toml(file: Path, flag: str = "") -> dict[str, Any]:
    """The tables in a file. Raises ScenarioError with one line, which begins with `flag` if there is one."""
    prefix = f"{flag}: " if flag else ""
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ScenarioError(f"{prefix}{file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML, or the encoding
        raise ScenarioError(f"{prefix}{file} is not TOML: {error}") from None
