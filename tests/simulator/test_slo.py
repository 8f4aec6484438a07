"""What may be asked of a run's latencies, and how a mistake is told."""

import pytest

from simulator.scenario import ScenarioError
from simulator.slo import Limit, Slo, parse_slo


def test_percentiles_means_and_the_most():
    slo = parse_slo(["ttft.p99=1s", "tpot.mean<=50ms,e2e.max = 1.5min", "itl.p99.9=200ms"])
    assert slo.limits == (
        Limit("ttft", "p99", 1.0),
        Limit("tpot", "mean", 0.05),
        Limit("e2e", "max", 90.0),
        Limit("itl", "p99.9", 0.2),
    )


def test_limits_of_each_request_are_met_by_a_share_of_them():
    slo = parse_slo(["ttft=1s", "tpot=50ms"], attainment=0.95)
    assert (slo.limits, slo.each, slo.attainment) == ((), (Limit("ttft", None, 1.0), Limit("tpot", None, 0.05)), 0.95)


def test_without_a_share_it_is_99_percent():
    assert parse_slo(["ttft=1s"]).attainment == 0.99


def test_both_kinds_go_together():
    slo = parse_slo(["e2e=20s", "ttft.p50=500ms"])
    assert slo.text == "TTFT p50 at most 500 ms, 99% of requests with E2E of at most 20 s"


def test_a_limit_says_what_the_command_line_said():
    assert [limit.text for limit in parse_slo(["ttft.p99=1s", "tpot.mean=40ms"]).limits] == [
        "ttft.p99=1s",
        "tpot.mean=0.04s",
    ]


def test_the_shares_that_are_asked_of_a_measure():
    slo = parse_slo(["ttft.p90=1s", "ttft=3s", "ttft.mean=2s", "tpot.p50=40ms"], attainment=0.97)
    assert slo.shares("ttft") == [(0.9, 1.0), (0.97, 3.0)]


@pytest.mark.parametrize(
    ("texts", "tail"),
    [(["ttft.p99=1s", "tpot.p50=1s"], 0.01), (["ttft=1s"], 0.01), (["e2e.mean=1s", "ttft.max=1s"], 1.0)],
)
def test_how_far_into_the_tail_to_look(texts, tail):
    assert parse_slo(texts).tail == pytest.approx(tail)


REFUSED = {
    "--slo: is needed to tell which fleet is good enough: --slo ttft.p99=2s": ([], None),
    "--slo: must be a measure and its limit such as ttft.p99=2s, got 'fast'": (["fast"], None),
    "--slo: unknown measure 'tftt'; did you mean ttft?": (["tftt.p99=1s"], None),
    "--slo: unknown measure 'queue9'; known: ttft, tpot, itl, e2e": (["queue9.p99=1s"], None),
    "--slo: must be mean, max or a percentile such as p99, got '99' in 'ttft.99=1s'; did you mean p99?": (
        ["ttft.99=1s"],
        None,
    ),
    "--slo: must be mean, max or a percentile such as p99, got 'p100' in 'ttft.p100=1s'": (["ttft.p100=1s"], None),
    "--slo: must end in a time such as 2s or 40ms, got '2h' in 'ttft.p99=2h'": (["ttft.p99=2h"], None),
    "--slo: must be more than 0 seconds, got '0s' in 'ttft.p99=0s'": (["ttft.p99=0s"], None),
    "--slo: ttft.p99 is limited twice": (["ttft.p99=1s", "ttft.p99=2s"], None),
    "--slo: itl is of many gaps, not one for each request: say itl.p99=40ms": (["itl=40ms"], None),
    "--slo-attainment: goes with limits for each request: --slo ttft=2s, without a percentile": (
        ["ttft.p99=1s"],
        0.9,
    ),
    "--slo-attainment: must be a share above 0 and up to 1, got 99": (["ttft=1s"], 99.0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_mistake_is_one_line(message):
    with pytest.raises(ScenarioError) as refused:
        parse_slo(*REFUSED[message])
    assert str(refused.value) == message


def test_an_slo_is_a_value():
    assert parse_slo(["ttft.p99=1s"]) == Slo((Limit("ttft", "p99", 1.0),))
