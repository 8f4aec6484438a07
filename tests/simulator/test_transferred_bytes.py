"""Bytes that travel from prefill to decode replicas, beside an arithmetic that knows nothing of this code.

It is written from the models' published configurations: layers, key-value heads, head sizes, windows, chunks, states,
two bytes an element, blocks of 16 tokens (80 where a page of attention must hold a state).
"""

from dataclasses import dataclass

import pytest

from simulator import Scenario
from simulator.disaggregation import Servers, simulate_disaggregated
from simulator.link import Link
from simulator.router import RoundRobin
from tests.simulator.fleets import row, trace_of


@dataclass(frozen=True)
class Published:
    """A model as its configuration says; bytes are those of one element times the elements."""

    full_layers: int
    token_bytes: int
    """Key and value of one token in one layer, all heads."""
    block: int
    window_layers: int = 0
    window: int = 0
    chunk_layers: int = 0
    chunk: int = 0
    state_layers: int = 0
    state_bytes: int = 0

    def travelling(self, prompt: int, hit: int) -> int:
        """Bytes for a prompt of which the decode replica holds `hit` tokens, a multiple of the block."""
        tokens = prompt - 1 if self.state_layers else prompt
        if tokens <= hit:
            return 0
        blocks = -(-tokens // self.block)
        held = hit // self.block
        in_window = blocks - max(held, max(0, tokens - self.window + 1) // self.block)
        in_chunk = blocks - max(held, tokens // self.chunk * self.chunk // self.block) if self.chunk else 0
        pages = self.full_layers * (blocks - held)
        pages += self.window_layers * in_window + self.chunk_layers * in_chunk
        return pages * self.block * self.token_bytes + self.state_layers * self.state_bytes


PUBLISHED = {
    "gemma-3-27b": Published(10, 2 * 16 * 128 * 2, block=16, window_layers=52, window=1024),
    "llama-4-scout": Published(12, 2 * 8 * 128 * 2, block=16, chunk_layers=36, chunk=8192),
    # 8,192 channels: three positions of the convolution and 16 numbers of the recurrence for each
    "jamba-v0.1": Published(4, 2 * 8 * 128 * 2, block=80, state_layers=28, state_bytes=8192 * (3 + 16) * 2),
}
PROMPTS = {
    "gemma-3-27b": (1, 15, 16, 17, 1000, 1023, 1024, 1025, 1038, 1039, 1040, 5000, 20_000),
    "llama-4-scout": (1, 16, 100, 8191, 8192, 8193, 9000, 20_000),
    "jamba-v0.1": (1, 2, 79, 80, 81, 82, 161, 162, 5000, 20_000),
}


def run(model, rows, **settings):
    scenario = Scenario(
        model=model, step_time_s=0.01, num_gpu_blocks_override=20_000, max_model_len=24_000, block_size=16,
        prefix_cache_retention_interval="dense", **settings,
    )  # fmt: skip
    result = simulate_disaggregated(
        Servers([scenario], RoundRobin()), Servers([scenario], RoundRobin()), Link(50e9), trace=trace_of(*rows)
    )
    return result.requests.set_index("request_id")


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
@pytest.mark.parametrize("model", PUBLISHED)
def test_bytes_equal_the_arithmetic(model, tensor_parallel_size):
    """Nothing is shared; ranks split the heads and the channels, and all of them together get the same."""
    rows = [row(str(prompt), at_s=100.0 * nth, prompt=prompt) for nth, prompt in enumerate(PROMPTS[model])]
    requests = run(model, rows, tensor_parallel_size=tensor_parallel_size)
    expected = {str(prompt): PUBLISHED[model].travelling(prompt, 0) for prompt in PROMPTS[model]}
    assert requests["transferred_bytes"].to_dict() == expected


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
@pytest.mark.parametrize("model", PUBLISHED)
def test_bytes_equal_the_arithmetic_behind_a_prefix_hit(model, tensor_parallel_size):
    """Every prompt goes on where the one before it ended: what the decode replica has of it stays there."""
    lengths = (1601, 1700, 3201, 9601, 9602, 20_000)
    rows = [
        row(str(prompt), at_s=100.0 * nth, prompt=prompt, ids=range(prompt // 16))
        for nth, prompt in enumerate(lengths)
    ]  # fmt: skip
    requests = run(model, rows, tensor_parallel_size=tensor_parallel_size)
    hits = requests["decode_cached_tokens"]
    expected = {str(prompt): PUBLISHED[model].travelling(prompt, hits[str(prompt)]) for prompt in lengths}
    assert requests["transferred_bytes"].to_dict() == expected
    assert (hits > 0).sum() >= 3


def test_heads_that_several_ranks_keep_travel_to_each_of_them():
    """Eight heads on sixteen ranks: each is kept twice, so twice the bytes travel."""
    rows = [row("a", prompt=1600)]
    eight, sixteen = (
        run("llama-3.1-8b", rows, tensor_parallel_size=ranks).loc["a", "transferred_bytes"] for ranks in (8, 16)
    )
    assert sixteen == 2 * eight


def test_a_state_travels_without_the_padding_of_its_page():
    """Of jamba's pages of 320 KiB a state fills 304; all 28 travel with every request."""
    requests = run("jamba-v0.1", [row("a", prompt=1600)])
    assert requests.loc["a", "padding_bytes"] == 28 * (320 - 304) * 1024


def test_the_hybrid_manager_off_sends_every_token_of_every_layer():
    requests = run("gemma-3-27b", [row("a", prompt=16_000)], disable_hybrid_kv_cache_manager=True)
    assert requests.loc["a", "transferred_bytes"] == 62 * 16_000 * 2 * 16 * 128 * 2
