"""The settings that a study may vary: those of `kvplan simulate`, one server's and a fleet's, under the same names."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcache.policies import policy_named
from models_configs import find_model
from simulator.asked import prepare
from simulator.calibration_file import read_calibration
from simulator.fleet_options import FleetOptions
from simulator.hardware import find_gpu
from simulator.mistakes import MISTAKES
from simulator.scenario import Scenario, ScenarioError
from simulator.step_times import calibration_at
from simulator.study_point import Point, traffic_in
from simulator.toml_file import is_number
from workloads import read_trace

__all__ = [
    "FLEET",
    "NOT_FOR_STUDIES",
    "SETTINGS",
    "default_of",
    "mistake_in",
    "named",
    "point_of",
    "shown",
    "spelled",
    "unused_settings",
]

FLEET = {"replicas": "num_replicas", "replica": "replicas", "router": "router", "router_staleness_s": "staleness_s"}
"""The command line's name of a fleet's setting, and the field of `FleetOptions`."""
NOT_FOR_STUDIES = {"back_with", "pool_fraction"}
"""They measure this machine, not the server."""
SETTINGS = (*(name for name in Scenario.model_fields if name not in NOT_FOR_STUDIES), *FLEET)
_SOME_MODEL = "llama-3.1-8b"
_ONLY_PREFIX_AWARE = "prefix-aware"


def spelled(key: str) -> str:
    """A setting's name as it is here: a command line writes it with hyphens, and --model without a flag."""
    return key.replace("-", "_")


def shown(value: Any) -> str:
    """A value in few characters: text bare, everything else as JSON has it; None where nobody stated one."""
    if value is None:
        return "default"
    return str(value) if type(value) in {str, int} else json.dumps(value, default=str)


def named(name: str, value: Any) -> str:
    """A setting and its value: "block_size 16"; models and GPUs go by their name alone."""
    return shown(value) if name in {"model", "gpu"} and value is not None else f"{name} {shown(value)}"


def default_of(name: str) -> Any:
    """What a setting is where nobody states it; None: that depends on others."""
    if name in FLEET:
        return getattr(FleetOptions(), FLEET[name])
    field = Scenario.model_fields[name]
    return None if field.is_required() else field.default


# One setting alone.


def mistake_in(name: str, value: Any, folder: Path) -> str | None:
    """What is wrong with this value, whatever the others are; None: nothing. `folder`: where files are looked for."""
    try:
        if name in FLEET:
            _check_of_fleet(name, value)
        else:
            scenario = Scenario(**{"model": _SOME_MODEL, name: value})
            look_up = _LOOK_UPS.get(name)
            if look_up is not None:
                look_up(getattr(scenario, name), folder)
    except MISTAKES as error:
        return _without_flag(str(error))
    return None


def _look_up_trace(trace: Path | None, folder: Path) -> None:
    if trace is not None:
        read_trace(folder / trace)


def _look_up_step_times(chosen: str, folder: Path) -> None:
    if (file := calibration_at(chosen)) is not None:
        read_calibration(folder / file)


_LOOK_UPS: dict[str, Callable[[Any, Path], object]] = {
    "model": lambda model, folder: find_model(_model_at(model, folder)),
    "gpu": lambda gpu, folder: None if gpu is None else find_gpu(gpu),
    "grouping": lambda grouping, folder: None if grouping is None else policy_named(grouping),
    "step_times": _look_up_step_times,
    "trace": _look_up_trace,
}
"""Names that lead somewhere."""


def _check_of_fleet(name: str, value: Any) -> None:
    """Raise ScenarioError if one setting of a fleet is wrong."""
    if name == "replicas" and (isinstance(value, bool) or not isinstance(value, int)):
        raise ScenarioError(f"must be a whole number, got {value!r}")
    if name == "replica" and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise ScenarioError(f'must be a list of texts such as ["gpu=h200,count=2"], got {value!r}')
    if name == "router" and not isinstance(value, str):
        raise ScenarioError(f"must be a router's name, got {value!r}")
    if name == "router_staleness_s" and not is_number(value):
        raise ScenarioError(f"must be a number of seconds, got {value!r}")
    others = {"router": _ONLY_PREFIX_AWARE} if name == "router_staleness_s" else {}
    count = {} if name in {"replicas", "replica"} else {"replicas": 2}
    prepare(Scenario(model=_SOME_MODEL), _options({**count, **others, name: value}))


def _without_flag(message: str) -> str:
    """A mistake of the command line, without the flag: the place is said already."""
    flag, colon, rest = message.partition(": ")
    return rest if colon and (flag.startswith("--") or flag == "model") else message


# Settings together.


def point_of(settings: Mapping[str, Any], folder: Path) -> Point:
    """The point of these settings. Raises ScenarioError where they contradict each other.

    A router, and how stale its knowledge is, say nothing of a single server: they are left out there.
    """
    if "model" not in settings:
        raise ScenarioError("model: is needed, in [base] or for every point")
    server = {name: value for name, value in settings.items() if name not in FLEET}
    server["model"] = _model_at(server["model"], folder)
    if server.get("trace") is not None:
        server["trace"] = (folder / server["trace"]).absolute()
    if (file := calibration_at(server.get("step_times", "roofline"))) is not None:
        server["step_times"] = str((folder / file).absolute())
    fleet = {name: value for name, value in settings.items() if name in FLEET}
    if not _has_router(fleet):
        fleet.pop("router", None)
    if fleet.get("router") != _ONLY_PREFIX_AWARE:
        fleet.pop("router_staleness_s", None)
    point = Point(Scenario(**server), _options(fleet))
    prepare(point.scenario, point.fleet)
    traffic_in(point)
    return point


def _has_router(fleet: Mapping[str, Any]) -> bool:
    return fleet.get("replicas", 1) != 1 or bool(fleet.get("replica"))


def _options(fleet: Mapping[str, Any]) -> FleetOptions:
    values: dict[str, Any] = {
        FLEET[name]: tuple(value) if isinstance(value, list) else value for name, value in fleet.items()
    }
    return FleetOptions(**values)


def _model_at(model: str, folder: Path) -> str:
    """A path to a config.json is relative to `folder`; a name stays one."""
    return str((folder / model).absolute()) if (folder / model).exists() else model


def unused_settings(stated: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Iterator[str]:
    """Mistakes: settings that no point has a use for."""
    named = set(names)
    with_router = [settings for settings in stated if _has_router(settings)]
    if "router" in named and not with_router:
        yield "router: there is nothing to choose from: no point has several replicas"
    elif "router_staleness_s" in named and all(each.get("router") != _ONLY_PREFIX_AWARE for each in with_router):
        yield f"router_staleness_s: goes with router {_ONLY_PREFIX_AWARE} only, which no point has"
