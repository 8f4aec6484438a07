"""Which model of step times a server gets: what `--step-times` asks for."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from models_configs import Model
from simulator.hardware import Gpu
from simulator.latency import ConstantStepTimes, StepTimes
from simulator.roofline import Roofline
from simulator.scenario import Scenario, ScenarioError

__all__ = ["calibration_at", "step_times_notes", "step_times_of"]

BUILT_IN = ("roofline", "silicon")
"""Models of step times that need no file."""


def calibration_at(chosen: str) -> Path | None:
    """The file that `--step-times` names, if it names one."""
    return None if chosen in BUILT_IN else Path(chosen)


def step_times_of(scenario: Scenario, model: Model, gpu: Gpu | None) -> StepTimes:
    """How long steps take on the server of a scenario. Raises ScenarioError with one line."""
    chosen = scenario.step_times
    if scenario.step_time_s is not None:
        if chosen != "roofline":
            raise ScenarioError(f"--step-times: {chosen} does not go with --step-time-s: say one of them")
        return ConstantStepTimes(scenario.step_time_s)
    if gpu is None:
        raise ScenarioError("--gpu: is needed to tell how long steps take; or state --step-time-s")
    efficiencies = None
    if chosen == "silicon":
        raise ScenarioError("--step-times: silicon, kernels that were measured, is not there yet; say roofline")
    if chosen != "roofline":
        from simulator.calibration_file import read_calibration

        calibration = read_calibration(_file(chosen))
        calibration.check(chosen, gpu.name, scenario.tensor_parallel_size)
        efficiencies = calibration.efficiencies
    return Roofline(model, gpu, scenario.tensor_parallel_size, scenario.kv_cache_dtype, efficiencies)


def step_times_notes(scenario: Mapping[str, Any]) -> list[str]:
    """What a person should know of the step times of a run: a line each. `scenario`: as it was resolved."""
    chosen = scenario.get("step_times", "roofline")
    if chosen in BUILT_IN:
        return []
    from simulator.calibration_file import read_calibration

    return read_calibration(_file(chosen)).notes(
        chosen, scenario["model"], scenario["dtype"], scenario["kv_cache_dtype"]
    )


def _file(chosen: str) -> Path:
    """The calibration that a person named, who may have meant something else."""
    file = Path(chosen)
    if not file.exists() and file.suffix != ".toml":
        near = get_close_matches(chosen, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScenarioError(f"--step-times: must be roofline, silicon or a FILE.toml, got {chosen!r}{hint}")
    return file
