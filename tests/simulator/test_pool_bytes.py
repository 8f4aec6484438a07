"""Where the pool's bytes are: six parts that add up to it, in whatever state a server is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.pool_bytes import BYTE_COLUMNS, PoolBytes
from simulator.table import frame_of
from tests.kvcache.pools import TOKEN_BYTES, chunked, full, mamba, sliding
from tests.simulator.conftest import Arrival, new_request, new_scheduler, run

BLOCK = 4 * TOKEN_BYTES
"""Bytes of a block of four tokens in one layer."""


def bytes_after_one_step(*arrivals: Arrival, **server) -> dict[str, float]:
    """The pool at the end of the first step, in which all prompts are computed."""
    scheduler = new_scheduler(**server)
    for serial, arrival in enumerate(arrivals):
        scheduler.add(new_request(scheduler, f"r{serial}", serial, arrival))
    scheduler.schedule(now_s=0.0)
    parts = PoolBytes(scheduler.manager).sample(scheduler)
    return {name.removesuffix("_bytes"): part for name, part in zip(BYTE_COLUMNS, parts, strict=True)}


def test_a_prompt_leaves_its_last_block_partly_empty():
    """Six tokens in two blocks of four, in a pool of ten with the null block."""
    parts = bytes_after_one_step(Arrival(0.0, prompt=6, output=2), num_blocks=10)
    assert parts == {
        "live": 6 * TOKEN_BYTES, "empty": 2 * TOKEN_BYTES, "padding": 0, "cached": 0, "free": 7 * BLOCK, "null": BLOCK
    }  # fmt: skip


def test_a_shared_block_counts_once():
    """Two prompts of nine tokens share two blocks and own one each."""
    parts = bytes_after_one_step(*[Arrival(0.0, 9, 2, prefix_ids=(1, 2))] * 2, num_blocks=10)
    assert (parts["live"], parts["empty"], parts["free"]) == (10 * TOKEN_BYTES, 6 * TOKEN_BYTES, 5 * BLOCK)


def test_groups_of_unequal_size_are_padded():
    """Three full and five sliding layers make groups of 3, 3 and 2: one of nine places in each block is padding."""
    layers = [full(4)] * 3 + [sliding(8, 4)] * 5
    parts = bytes_after_one_step(Arrival(0.0, prompt=8, output=2), layers=layers, num_blocks=10)
    assert (parts["live"], parts["padding"]) == (2 * 8 * BLOCK, 2 * BLOCK)


def test_a_state_is_padded_to_the_page_of_the_attention_beside_it():
    """A state of three tokens' size in a page of four; it is live from the first token on."""
    layers = [full(4), mamba(4, page_tokens=3).with_page_bytes(BLOCK)]
    parts = bytes_after_one_step(Arrival(0.0, prompt=1, output=2), layers=layers, num_blocks=10)
    assert (parts["live"], parts["empty"], parts["padding"]) == (4 * TOKEN_BYTES, 3 * TOKEN_BYTES, TOKEN_BYTES)


def test_what_a_finished_request_leaves_is_cached_or_free():
    """Nine tokens fill two blocks, which can still be hit; the third is free. The next request has one more."""
    log = run([Arrival(0.0, 9, 1), Arrival(5.0, 1, 1)], num_blocks=10)
    (first, *_) = frame_of(log.recorder.steps_table()).itertuples()
    assert (first.cached_blocks, first.free_blocks) == (0, 6)
    last = frame_of(log.recorder.steps_table()).iloc[-1]
    assert (last["cached_blocks"], last["free_blocks"]) == (2, 8)


LAYERS = {
    "full": [full(4)],
    "padded groups": [full(4)] * 2 + [sliding(9, 4)] * 5,
    "chunks": [full(4), *[chunked(16, 4)] * 3],
    "states": [full(4), *[mamba(4, page_tokens=3).with_page_bytes(BLOCK)] * 3],
    "unequal heads": [full(4), full(4, num_kv_heads=2), sliding(9, 4)],
}


arrivals = st.builds(
    lambda at_s, prompt, output, shared: Arrival(at_s, prompt, output, tuple(range(shared))),
    st.integers(0, 30), st.integers(1, 40), st.integers(1, 20), st.integers(0, 15),
)  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=30)
@given(requests=st.lists(arrivals, min_size=1, max_size=6), num_blocks=st.integers(16, 100), is_async=st.booleans())
def test_the_parts_add_up_to_the_pool(name, requests, num_blocks, is_async):
    """In every step, with hits, evictions and preemptions; no part is negative."""
    rows = []
    log = run(
        requests,
        layers=LAYERS[name],
        num_blocks=num_blocks,
        max_num_batched_tokens=16,
        async_scheduling=is_async,
        on_planned=lambda scheduler: rows.append(PoolBytes(scheduler.manager).sample(scheduler)),
    )
    assert {(sum(row), min(row) >= 0) for row in rows} == {(log.scheduler.manager.layout.pool_bytes, True)}
