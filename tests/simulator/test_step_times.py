"""Where step times are from is told, and where something else stood in for what was asked for."""

import pytest

from simulator import Scenario, ScenarioError
from simulator.deployment import deploy
from simulator.step_times import how_far_off, stand_ins, step_times_sources

NEAR = "measured kernels of A on h200, times the ratio of rooflines: there are no measured kernels of B"
EXACT = "measured kernels of A on h200"


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"capacity": {"step_times": "roofline"}}, []),
        ({"capacity": {"step_times": "stated"}}, []),
        ({"capacity": {"step_times": NEAR}}, [NEAR]),
        ({"capacity": {}, "replicas": [{"capacity": {"step_times": s}} for s in (NEAR, "roofline", NEAR)]}, [NEAR]),
    ],
)
def test_a_run_tells_what_is_not_the_roofline_once(run, told):
    assert step_times_sources(run) == told


def test_a_report_adds_what_stood_in():
    assert stand_ins([EXACT, NEAR, NEAR]) == f" In part they are {NEAR}."
    assert stand_ins([EXACT]) == ""


def test_a_report_says_what_they_are_worth():
    said = how_far_off(["roofline", "l4.toml"])
    assert said.startswith("Step times are a roofline (published measurements lie about a tenth from its TPOT")
    assert "a roofline as calibrated in l4.toml, as good as that server's measurements" in said


def test_two_ways_at_once_are_refused():
    scenario = Scenario(model="gemma-3-1b", gpu="l4", step_time_s=0.01, step_times="silicon")
    with pytest.raises(ScenarioError, match="--step-times: silicon does not go with --step-time-s: say one of them"):
        _ = deploy(scenario).step_times
