"""Which model of step times a server gets: what `--step-times` asks for."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from models_configs import Model
from simulator.efficiencies import Efficiencies, efficiencies_of
from simulator.hardware import Gpu
from simulator.latency import STATED, ConstantStepTimes, StepTimes
from simulator.roofline import ROOFLINE, Roofline
from simulator.scenario import Scenario, ScenarioError
from simulator.summary_table import listed

__all__ = ["calibration_at", "how_far_off", "stand_ins", "step_times_of", "step_times_sources"]

BUILT_IN = ("roofline", "silicon")
"""Models of step times that need no file."""

_WORTH = {
    "roofline": "a roofline (published measurements lie about a tenth from its TPOT, a fifth from its TTFT)",
    "silicon": "measured kernels (published measurements lie about a tenth from their TPOT, a sixth from their TTFT)",
}


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
    efficiencies, source = efficiencies_of(gpu, async_scheduling=scenario.async_scheduling), ROOFLINE
    if chosen == "silicon":
        return _silicon(scenario, model, gpu, efficiencies)
    if chosen != "roofline":
        from simulator.calibration_file import read_calibration

        calibration = read_calibration(_file(chosen))
        calibration.check(chosen, gpu.name, scenario.tensor_parallel_size)
        notes = calibration.notes(model.name, model.dtype, scenario.kv_cache_dtype)
        efficiencies, source = calibration.efficiencies, "; ".join([f"roofline as calibrated in {chosen}", *notes])
    return Roofline(model, gpu, scenario.tensor_parallel_size, scenario.kv_cache_dtype, efficiencies, source)


def step_times_sources(run: Mapping[str, Any]) -> list[str]:
    """Where the step times of a run's servers are from, where that is neither the roofline nor stated: a line each.

    `run`: as `Result.to_json` has it.
    """
    servers = [replica["capacity"] for replica in run.get("replicas", [])] or [run["capacity"]]
    sources = dict.fromkeys(server.get("step_times", ROOFLINE) for server in servers)
    return [source for source in sources if source not in {ROOFLINE, STATED}]


def stand_ins(sources: Iterable[str]) -> str:
    """What a report adds where something else stood in for what was asked for; nothing where nothing did."""
    found = [source for source in dict.fromkeys(sources) if ": " in source or "; " in source]
    return f" In part they are {'; '.join(found)}." if found else ""


def how_far_off(chosen: Iterable[str]) -> str:
    """What step times of these kinds are worth, in a sentence for a report."""
    kinds = [
        _WORTH.get(name, f"a roofline as calibrated in {name}, as good as that server's measurements")
        for name in chosen
    ]
    return f"Step times are {listed(kinds)}: a limit that is kept by less may be broken on a real server."


def _silicon(scenario: Scenario, model: Model, gpu: Gpu, efficiencies: Efficiencies) -> StepTimes:
    try:
        from simulator.nearest_kernels import silicon_step_times
    except ModuleNotFoundError:
        raise ScenarioError('--step-times: silicon needs an extra: pip install "kvplan[silicon]"') from None
    return silicon_step_times(
        model,
        gpu,
        scenario.tensor_parallel_size,
        scenario.kv_cache_dtype,
        efficiencies,
        expert_parallel=scenario.enable_expert_parallel,
    )


def _file(chosen: str) -> Path:
    """The calibration that a person named, who may have meant something else."""
    file = Path(chosen)
    if not file.exists() and file.suffix != ".toml":
        near = get_close_matches(chosen, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScenarioError(f"--step-times: must be roofline, silicon or a FILE.toml, got {chosen!r}{hint}")
    return file
