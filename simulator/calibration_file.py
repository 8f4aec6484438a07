"""The file of a calibration: which server was measured, how well the fit does, and its efficiencies."""

from datetime import date
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from simulator.calibration import HIGHEST_SHARE
from simulator.efficiencies import COSTS, SHAPES, SHARES, Efficiencies
from simulator.scenario import AttentionDtype, ScenarioError
from simulator.toml_file import read_toml

__all__ = ["Calibration", "KindError", "calibration_text", "read_calibration"]

FLAG = "--step-times"
HEADER = """\
# Step times of one server, fitted by `kvplan calibrate`; `kvplan simulate --step-times FILE` takes them.
"""
_STRICT = ConfigDict(frozen=True, extra="forbid")

Share = Annotated[float, Field(gt=0, le=HIGHEST_SHARE + 1e-9)]
Cost = Annotated[float, Field(ge=0, lt=inf)]


class KindError(BaseModel):
    """How far predictions of one kind of measurement are off, as parts of what was measured."""

    model_config = _STRICT

    kind: str
    num_rows: Annotated[int, Field(ge=1)]
    median: float
    """Of the absolute errors."""
    p90: float
    bias: float
    """The median error, with its sign: positive where predictions are too long."""


_EfficienciesTable = create_model(  # a field for each of `Efficiencies`, so that none is forgotten
    "_EfficienciesTable",
    __config__=_STRICT,
    **dict.fromkeys(SHARES, (Share, ...))  # type: ignore[call-overload]
    | dict.fromkeys((*COSTS, *SHAPES), (Cost, ...))
    | {"matmul_overlap": (Annotated[float, Field(ge=1)], ...)},
)


class Calibration(BaseModel):
    """What a calibration file says."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    model: str
    gpu: str
    tensor_parallel_size: Annotated[int, Field(ge=1)]
    dtype: str
    kv_cache_dtype: AttentionDtype
    measured: Literal["steps", "request stamps"]
    source: str
    """Name of the file of measurements."""
    num_rows: Annotated[int, Field(ge=1)]
    date: date
    errors: tuple[KindError, ...]
    fitted: tuple[str, ...]
    """Figures that the measurements tell; the others are defaults."""
    efficiencies: Efficiencies

    def check(self, file: str, gpu: str, tensor_parallel_size: int) -> None:
        """Raise ScenarioError, one line, where it was fitted for other hardware."""
        if self.gpu != gpu:
            raise ScenarioError(
                f"{FLAG}: {file} was fitted on {self.gpu}, not on {gpu}: what a server reaches of its hardware differs"
            )
        if self.tensor_parallel_size != tensor_parallel_size:
            raise ScenarioError(
                f"{FLAG}: {file} was fitted with --tensor-parallel-size {self.tensor_parallel_size}, not"
                f" {tensor_parallel_size}: smaller slices reach less of the hardware"
            )

    def notes(self, model: str, dtype: str, kv_cache_dtype: str) -> list[str]:
        """What else differs from the server that was measured."""
        there = {"model": self.model, "dtype": self.dtype, "KV cache dtype": self.kv_cache_dtype}
        here = {"model": model, "dtype": dtype, "KV cache dtype": kv_cache_dtype}
        return [
            f"fitted with {name} {there[name]}, not {here[name]}, so it carries over in part"
            for name in there
            if there[name] != here[name]
        ]


def calibration_text(calibration: Calibration) -> str:
    """The file, as TOML."""
    lines = [HEADER]
    for name in Calibration.model_fields:
        value = getattr(calibration, name)
        if name not in {"errors", "fitted", "efficiencies"}:
            lines.append(f"{name} = {_toml(value)}")
    lines += [f"fitted = [{', '.join(map(_toml, calibration.fitted))}]", "", "[efficiencies]"]
    efficiencies = calibration.efficiencies
    lines += [f"{name} = {getattr(efficiencies, name)!r}" for name in (*SHARES, *COSTS, *SHAPES)]
    for error in calibration.errors:
        lines += ["", "[[errors]]"]
        lines += [f"{name} = {_toml(value)}" for name, value in error.model_dump().items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}"'
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_calibration(file: Path) -> Calibration:
    """What a calibration file says. Raises ScenarioError with one line where it is none."""
    tables = read_toml(file, FLAG)
    try:
        figures = _EfficienciesTable.model_validate(tables.get("efficiencies", {}))
        efficiencies = Efficiencies(**figures.model_dump())
    except ValidationError as error:
        raise ScenarioError(f"{FLAG}: {file}: {_first_line(error, 'efficiencies.')}") from None
    try:
        return Calibration.model_validate({**tables, "efficiencies": efficiencies})
    except ValidationError as error:
        raise ScenarioError(f"{FLAG}: {file}: {_first_line(error)}") from None


def _first_line(error: ValidationError, prefix: str = "") -> str:
    mistakes = error.errors()
    mistake = next((each for each in mistakes if each["type"] == "extra_forbidden"), mistakes[0])  # a typo is both
    name = prefix + ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "missing":
        return f"{name} is missing: was the file written by `kvplan calibrate`?"
    if mistake["type"] == "extra_forbidden":
        known = (*SHARES, *COSTS, *SHAPES) if prefix else tuple(Calibration.model_fields)
        near = get_close_matches(str(mistake["loc"][-1]), known, n=1)
        return f"unknown {name}" + (f"; did you mean {near[0]}?" if near else "")
    return f"{name} {mistake['msg'].replace('Input should be', 'must be')}, got {mistake['input']!r}"
