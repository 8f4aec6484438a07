"""TOML that a person wrote, or one line of what is wrong with the file."""

import tomllib
from pathlib import Path
from typing import Any, TypeGuard

from simulator.scenario import ScenarioError

__all__ = ["is_number", "read_toml"]


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


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one for a person: true and false, which Python counts as 1 and 0, are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
