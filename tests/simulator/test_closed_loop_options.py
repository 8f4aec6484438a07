"""From a scenario to a closed loop: what goes together, and what does not."""

import pytest

from simulator import Scenario, ScenarioError, simulate
from simulator.progress import RunProgress
from workloads import SessionTrace, conversation_demo

SERVER = Scenario(model="gemma-3-1b", gpu="l4", concurrent_sessions=1)
NONE = SessionTrace("test", None, lambda: iter(()))


def test_sessions_need_somebody_to_say_how_they_come():
    with pytest.raises(ScenarioError, match=r"^--trace: test holds sessions without times of arrival: say how"):
        simulate(SERVER.model_copy(update={"concurrent_sessions": None}), NONE)


def test_a_trace_of_requests_has_no_sessions():
    with pytest.raises(ScenarioError, match="conversation-demo holds single requests, not sessions: say --concurrency"):
        simulate(SERVER, conversation_demo())


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"concurrent_sessions": 1, "concurrency": 1}, "--concurrency: keeps single requests in flight"),
        ({"session_rate": 1.0, "request_rate": 1.0}, "--request-rate: makes single requests up"),
        ({"session_rate": 1.0, "num_requests": 5}, "--num-requests: would cut a session in the middle: say --num-sess"),
        ({"session_rate": 1.0, "rate_scale": 2.0}, "--rate-scale: changes times of arrival, and in a closed loop"),
        ({"session_rate": 1.0, "input_len": 2}, "--input-len: goes with single requests only, not with sessions"),
        ({"concurrency": 1, "request_rate": 1.0}, "--request-rate: says when requests arrive, --concurrency that"),
        ({"concurrency": 1, "spread_ticks": True}, "--spread-ticks: changes times of arrival"),
        ({"concurrency": 1, "num_sessions": 2}, "--num-sessions: goes with sessions only"),
        ({"concurrency": 1, "input_len": 2}, "--concurrency: makes requests up from --input-len and --output-len"),
        ({"num_sessions": 2}, "--num-sessions: goes with sessions only"),
        ({"max_think_time_s": 2.0}, "--max-think-time-s: goes with sessions only"),
        ({"concurrency": 1, "back_with": "cpu"}, "--back-with: goes with requests that arrive at times of their own"),
        ({"concurrency": 0}, "--concurrency: must be greater than or equal to 1, got 0"),
    ],
)
def test_what_does_not_go_together_is_said(stated, problem):
    with pytest.raises(ScenarioError) as refused:
        simulate_any(Scenario(model="gemma-3-1b", gpu="l4", **stated))
    assert str(refused.value).startswith(problem)


def simulate_any(scenario: Scenario):
    """As the command line does: its progress knows the traffic first."""
    progress = RunProgress(scenario, shown=False)
    return simulate(scenario, progress.trace)
