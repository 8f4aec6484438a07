"""Simulate LLM serving and plan its capacity.

Read `engine.simulate` first (it builds the world), then `replica.run_replica` (the loop), then
`scheduler.Scheduler.schedule` (the decision). `deployment` turns what a person asks for (`scenario`)
into a server; `recorder`, `metrics`, `plots` and `report` measure and show. `fleet.simulate_fleet` builds a world of
several such servers behind a `router`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine import simulate
    from simulator.result import Result
    from simulator.scenario import Scenario, ScenarioError

__all__ = ["Result", "Scenario", "ScenarioError", "simulate"]

# Loaded when first used, so that the command line's help does not wait for numpy and pandas.
_MODULE_OF = {
    "Result": "simulator.result",
    "Scenario": "simulator.scenario",
    "ScenarioError": "simulator.scenario",
    "simulate": "simulator.engine",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
