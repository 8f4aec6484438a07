"""Public traces, read whole: the figures that others have published or counted."""

import pytest

from workloads import describe, read_trace, slice_rows, spread_ticks


@pytest.fixture(scope="module")
def mooncake(shared_data):
    return read_trace(shared_data / "traces" / "mooncake_conversation.jsonl")


@pytest.mark.parametrize(
    ("num_rows", "hit_tokens", "prompt_tokens"), [(2_000, 8_066_048, 27_441_774), (12_031, 54_063_104, 144_793_823)]
)
def test_mooncake_ideal_hits(mooncake, num_rows, hit_tokens, prompt_tokens):
    found = describe(slice_rows(mooncake, 0, num_rows), block_size=16)
    assert (found.num_requests, found.ideal_hit_tokens, found.prompt_tokens_total) == (
        num_rows,
        hit_tokens,
        prompt_tokens,
    )


def test_mooncake_lengths_and_ticks(mooncake):
    found = describe(mooncake)
    assert (round(found.prompt.mean), round(found.prompt.p50), round(found.prompt.p99)) == (12_035, 6_909, 85_400)
    assert (found.prompt.max, round(found.output.mean)) == (126_195, 343)
    ticks, partial = found.warnings
    assert ticks.startswith("Arrivals sit on ticks of 3 s: 12,031 of 12,031 requests share their stamp, up to 28 at")
    assert partial.startswith("12,009 prompts end inside a block of 512 tokens")


def test_mooncake_spread_over_its_ticks_is_poisson(mooncake):
    assert describe(spread_ticks(mooncake)).interarrival_cv == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("kind", "num_rows", "cv"), [("conv", 19_366, 1.09), ("code", 8_819, 13.15)])
def test_azure_size_and_burstiness(shared_data, kind, num_rows, cv):
    found = describe(read_trace(shared_data / "traces" / f"azure_2023_{kind}.csv"))
    assert (found.num_requests, round(found.interarrival_cv, 2)) == (num_rows, cv)
    assert found.span_s == pytest.approx(58 * 60, rel=0.02)


def test_sessions_without_arrivals_are_not_mistaken_for_a_trace(shared_data):
    with pytest.raises(ValueError, match="holds sessions, whose requests wait for one another"):
        read_trace(shared_data / "traces" / "coding_agent_sessions.jsonl.gz")
