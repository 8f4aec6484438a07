"""Requests' stamps say how fast a server's steps are, though nobody timed one."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulator import Scenario
from simulator.calibration_stamps import Replay, StampFit, Stamps, fit_to_stamps, replay
from simulator.deployment import Deployment, deploy
from simulator.efficiencies import Efficiencies
from simulator.scenario import ScenarioError
from tests.simulator.measured_steps import decode, mixed, prefill, roofline_of
from workloads import Trace, TraceRequest

SERVED = Efficiencies(matmul_compute=0.5, weight_bandwidth=0.65, kv_bandwidth=0.6, step_s=3e-3)
WATCHED = [str(number) for number in range(40)]
L4 = roofline_of(gpu="l4")


@cache
def server() -> Deployment:
    """Small enough for requests to wait, and some to be preempted."""
    return deploy(
        Scenario(
            model="llama-3.1-8b", gpu="l4", max_model_len=4096, num_gpu_blocks_override=420,
            max_num_batched_tokens=1024,
        )
    )  # fmt: skip


@cache
def traffic() -> Trace:
    draw = np.random.default_rng(3)
    arrivals_s = np.cumsum(draw.exponential(0.8, 80))
    rows = [
        TraceRequest(str(number), float(at_s), int(draw.integers(20, 1500)), int(draw.integers(2, 200)))
        for number, at_s in enumerate(arrivals_s)
    ]
    return Trace("made up", None, lambda: iter(rows), len(rows))


@cache
def served() -> Replay:
    """The run of a server whose efficiencies are known."""
    return replay(server(), traffic(), L4(SERVED), WATCHED)


def logged(*, scheduled: bool, every: int | None) -> dict[str, Stamps]:
    """What the server or its client logs: the first and the last token, and one in `every` between them."""
    found = {}
    for name in WATCHED:
        stamps = served().stamps(name)
        assert stamps is not None
        last = len(stamps.token_s)
        marks = sorted({1, last, *(range(1, last, every) if every else ())})
        scheduled_s = stamps.scheduled_s if scheduled else None
        found[name] = Stamps(stamps.arrival_s, scheduled_s, {mark: stamps.token_s[mark] for mark in marks})
    return found


def fit(measured: dict[str, Stamps]) -> StampFit:
    return fit_to_stamps(server(), traffic(), measured, L4)


@pytest.mark.parametrize(("scheduled", "every"), [(True, None), (False, 32)], ids=["of a server", "of a client"])
def test_stamps_give_the_step_times_back(scheduled, every):
    """40 of 80 requests were logged; steps of all kinds are then predicted within 3 %."""
    found = fit(logged(scheduled=scheduled, every=every))
    other = [decode(8, 500), decode(30, 400), prefill((1024, 0)), prefill((300, 0)), mixed(600, 20, 500)]
    here, there = L4(found.fit.efficiencies), L4(SERVED)
    errors = [here.durations_s(batch)[0] / there.durations_s(batch)[0] - 1 for batch in other]
    assert errors == pytest.approx([0.0] * len(other), abs=0.03)


def test_replay_and_fit_settle():
    """Who comes just as a step begins may miss it in one run and not in the other: some first tokens are a step off."""
    found = fit(logged(scheduled=True, every=None))
    assert found.has_settled
    errors = np.abs(found.fit.predicted_s / found.spans.measured_s - 1)
    assert (np.mean(errors < 0.02) >= 0.85, np.median(errors) < 0.002) == (True, True)


def test_each_token_has_its_time_in_a_replay():
    """Preempted requests too: their tokens come once, and later ones after a gap."""
    requests = served().requests
    assert {name: len(times_s) for name, times_s in served().token_s.items()} == {
        name: requests[name].output_tokens for name in WATCHED
    }
    assert all(
        (times_s[0], times_s[-1]) == (requests[name].first_token_s, requests[name].finish_s)
        for name, times_s in served().token_s.items()
    )
    assert any(request.num_preemptions for request in requests.values())


def test_a_span_is_made_of_the_steps_between_its_stamps():
    """Where replay and log agree the steps' times add up to the span."""
    spans = served().spans(logged(scheduled=True, every=16))
    server_times = L4(SERVED)
    step_s = np.array([[server_times.durations_s(batch)[0]] for batch in spans.batches])
    assert spans.sums(step_s)[:, 0] == pytest.approx(spans.measured_s)


def test_requests_that_are_turned_away_tell_nothing():
    measured = logged(scheduled=True, every=None)
    too_long = [replace(row, prompt_tokens=9000) for row in traffic()]
    refused = Trace("too long", None, lambda: iter(too_long), len(too_long))
    with pytest.raises(ScenarioError, match="none of the measured requests is served"):
        fit_to_stamps(server(), refused, measured, L4)
