"""Attention through the block tables is attention over the request's tokens, whatever has happened to its blocks.

The recorded scenarios below preempt requests, hit prefixes and free windows.
"""

import pytest
import torch

from kvcache import block_pool
from kvcache.block_pool import BlockPool
from tests.conformance.record import FOLDER, read
from tests.simulator.attending import TOLERANCES
from tests.simulator.witnessed import replay_with_attention

MODELS = {
    "full-54": ("bfloat16", {"full"}),
    "full-chunked-sliding-26": ("float32", {"full", "chunked", "sliding"}),
    "async-gemma3-49": ("float16", {"full", "sliding"}),
    "hybrid-off-6": ("fp8_e4m3", {"full"}),
    "llama4-34": ("bfloat16", {"full", "chunked"}),
    "mla-mamba-38": ("bfloat16", {"mla", "mamba"}),
    "async-jamba-51": ("bfloat16", {"full", "mamba"}),
    "async-sliding-78": ("float32", {"sliding"}),
}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def recorded(name):
    return read(FOLDER / f"{name}.json.gz")["scenario"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_dense_attention(name, device):
    dtype, kinds = MODELS[name]
    attending = replay_with_attention(recorded(name), device)
    assert attending.errors.keys() == kinds
    assert max(attending.errors.values()) < TOLERANCES[dtype]


@pytest.mark.skipif(not block_pool.__file__.endswith(".py"), reason="compiled methods cannot be replaced")
def test_it_notices_a_hit_on_blocks_that_hold_something_else(monkeypatch):
    """The comparison has teeth: other tokens' keys give another output."""
    monkeypatch.setattr(BlockPool, "_forget", lambda self, keys, blocks, is_anchor: None)
    attending = replay_with_attention(recorded("full-54"))
    assert attending.errors["full"] > 10 * TOLERANCES["bfloat16"]
