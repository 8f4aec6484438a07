"""One simulation of a study: what is asked, a hash of all that decides the answer, and the answer as plain values.

A `Point` can be sent to another process or machine; `run_point` answers there, and raises nothing.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from itertools import count, groupby
from pathlib import Path
from typing import Any, Literal

from simulator.asked import prepare
from simulator.closed_loop_options import traffic_of
from simulator.deployment import deploy
from simulator.engine import workload_of
from simulator.fleet_options import SHARED, FleetOptions, fleet_of
from simulator.measures import gpus_of
from simulator.mistakes import MISTAKES
from simulator.router import router_name
from simulator.scenario import Scenario, ScenarioError
from simulator.step_times import calibration_at
from workloads import Trace, TraceError, TraceRequest, read_trace

__all__ = ["Point", "Status", "kvplan_version", "read_once", "run_point", "traffic_in", "why_another", "without_run"]

Status = Literal["finished", "refused", "failed"]
"""It ran; kvplan says that it cannot run (weights do not fit ...), again and again; it broke down, once at least."""

_TRAFFIC = set(SHARED - {"model"})
"""Settings that change nothing of the server."""
_RESOLVED = {"num_replicas", "replicas", "router", "staleness_s"}
"""Of a fleet's options, what servers and routing say already."""
_MOST_BYTES_KEPT = 64 << 20
"""Of a trace file: a larger one is read again for each point, row by row."""
_TRACES_KEPT = 4


@dataclass(frozen=True)
class Point:
    """One server or fleet, and the traffic that it gets."""

    scenario: Scenario
    """Its trace is a path that leads to the file wherever the point runs."""
    fleet: FleetOptions = field(default_factory=FleetOptions)

    @cached_property
    def key(self) -> str:
        """A hash (hexadecimal digits) of all that decides the result, and of nothing else.

        Settings with their defaults filled in, the contents of the trace, of a model's file and of a calibration,
        kvplan's version; not where files lie, nor the order in which settings were written. Raises ScenarioError where
        a file cannot be read.
        """
        identity = {
            "kvplan": kvplan_version(),
            "settings": self._resolved(),
            "trace": _digest_of(self.scenario.trace),
            "model": _digest_of(_model_file(self.scenario.model)),
            "step_times": _digest_of(calibration_at(self.scenario.step_times)),
        }
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _resolved(self) -> dict[str, Any]:
        """What would run, or where nothing would what was asked for."""
        try:
            fleet = fleet_of(self.scenario, self.fleet)
            servers = [self.scenario] if fleet is None else fleet[0]
            named = [(_resolved_server(server), sum(1 for _ in equal)) for server, equal in groupby(servers)]
        except MISTAKES:
            return {"stated": _without_paths(self.scenario.model_dump(mode="json")), "fleet": asdict(self.fleet)}
        routing = None if fleet is None else {"router": router_name(fleet[1]), "staleness_s": fleet[2]}
        others = {name: value for name, value in asdict(self.fleet).items() if name not in _RESOLVED}
        return {"servers": named, "routing": routing, **others}


@cache
def kvplan_version() -> str:
    """As it is installed; to look it up takes longer than all else that a key is made of."""
    return version("kvplan")


def _resolved_server(scenario: Scenario) -> dict[str, Any]:
    # Points of a study are often the same server under other traffic, and working a server out takes a while.
    without_traffic = scenario.model_copy(update={name: Scenario.model_fields[name].default for name in _TRAFFIC})
    traffic = scenario.model_dump(mode="json", include=_TRAFFIC)
    return _without_paths({**_resolved_without_traffic(without_traffic), **traffic})


@lru_cache(maxsize=256)
def _resolved_without_traffic(scenario: Scenario) -> dict[str, Any]:
    return deploy(scenario).resolved_scenario()


def _without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the names of files alone."""
    kept = {name: value for name, value in settings.items() if name != "trace"}
    kept["step_times"] = Path(kept["step_times"]).name
    return kept if _model_file(kept["model"]) is None else {**kept, "model": Path(kept["model"]).name}


def _model_file(name: str) -> Path | None:
    """The config.json that a model is read from, if it is."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return path if path.is_file() else None


def run_point(point: Point) -> dict[str, Any]:
    """What became of a point, in plain JSON values.

    `status` (see `Status`) and `reason` (one line, None where it finished). Of a run that finished: `scenario`
    (resolved; of a fleet the first replica's), `capacity` and `summary` as `Result` has them, and `gpus`: how many
    of which accelerator, by name. These are None where it did not. No wall-clock time is in it: equal points
    give equal outcomes.
    """
    try:
        return {"status": "finished", "reason": None, **_measured(point)}
    except MISTAKES as error:
        return without_run("refused", str(error))
    except Exception as error:  # a study goes on without this point
        return without_run("failed", f"{type(error).__name__}: {error}")


def why_another(key: str, found: Callable[[], str]) -> str | None:
    """Why what a worker was sent is another question there than the one of this key; None: it is the same.

    A worker may be another machine with other files, or another kvplan. `found` works the key out anew: a copy that
    was sent brings the one that it had.
    """
    try:
        is_same = found() == key
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if is_same else "the worker has another version of kvplan, or other contents of the trace"


def without_run(status: Status, reason: str) -> dict[str, Any]:
    """The outcome of a point that did not finish."""
    reason = " ".join(reason.split()) or "no reason was given"
    return {"status": status, "reason": reason, "scenario": None, "capacity": None, "summary": None, "gpus": None}


def _measured(point: Point) -> dict[str, Any]:
    result = prepare(point.scenario, point.fleet)(traffic_in(point), None)
    summary = dict(result.summary)
    if "replicas" in summary:
        summary["replicas"] = [
            {**replica, "scenario": _without_paths(replica["scenario"])} for replica in summary["replicas"]
        ]
    return {
        "scenario": _without_paths(result.scenario),
        "capacity": result.capacity,
        "summary": summary,
        "gpus": gpus_of(result.to_json()),
    }


def traffic_in(point: Point) -> Trace | None:
    """The trace that a point replays; None for a closed loop, which has none.

    Raises ScenarioError or TraceError where there is none to be had.
    """
    scenario = point.scenario
    if scenario.is_closed_loop:
        traffic_of(scenario)
        return None
    return workload_of(scenario, read_once)


# Files.


def read_once(path: Path) -> Trace:
    """The trace in a file; its rows are kept for the next point of this process, unless the file is large.

    Raises TraceError as `workloads.read_trace` does, and while walking for a row that is malformed.
    """
    try:
        stat = path.stat()
    except OSError:
        return read_trace(path)  # which says what is wrong with it
    if stat.st_size > _MOST_BYTES_KEPT:
        return read_trace(path)
    return _kept_trace(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=_TRACES_KEPT)
def _kept_trace(path: Path, _num_bytes: int, _changed_ns: int) -> Trace:
    trace = read_trace(path)
    return replace(trace, rows=_KeptRows(trace).__iter__)


class _KeptRows:
    """Rows that are read when first somebody comes to them, and then kept: the next one reads no file."""

    def __init__(self, trace: Trace) -> None:
        self._unread = iter(trace)
        self._kept: list[TraceRequest] = []
        self._error: TraceError | None = None

    def __iter__(self) -> Iterator[TraceRequest]:
        for number in count():
            if number == len(self._kept):
                row = self._next_row()
                if row is None:
                    return
                self._kept.append(row)
            yield self._kept[number]

    def _next_row(self) -> TraceRequest | None:
        if self._error is not None:  # whoever comes here is told, not the first one only
            raise self._error
        try:
            return next(self._unread, None)
        except TraceError as error:
            self._error = error
            raise


def _digest_of(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        stat = path.stat()
        return _digest(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None


@lru_cache(maxsize=256)
def _digest(path: Path, _num_bytes: int, _changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
