"""Marks in the layers whose turn it is: whoever holds a block, in whichever group, writes over all others' marks."""

from dataclasses import replace

import numpy as np
import pytest

from kvcache.errors import KVCacheError
from kvcache.grouping import KVCacheGroup
from kvcache.layout import KVCacheLayout
from kvcache.pages import KVPages
from kvcache.placement import BLOCK_OUTERMOST, LAYER_OUTERMOST
from kvcache.specs import FullAttentionSpec
from simulator.deployment import deploy
from simulator.marked_pool import MarkedPool, Slots
from simulator.scenario import Scenario
from tests.conformance.generate import CONNECTED_KINDS, KINDS, scenario
from tests.conformance.record import FOLDER, read
from tests.conformance.replay import build
from tests.simulator.witnessed import replay_with_witness


def marked(layout: KVCacheLayout, order: str = LAYER_OUTERMOST) -> MarkedPool:
    """A pool whose groups each have a manager of their own."""
    pages = KVPages(layout, order=order)
    pages.raw.zero_()
    return MarkedPool(pages, [range(group, group + 1) for group in range(len(layout.groups))])


def first_slots(blocks: np.ndarray, mark: int) -> Slots:
    """The first slot of each block, or its state."""
    ones = np.ones(len(blocks), dtype=np.int64)
    return Slots(blocks[:, None], ones, ones - 1, mark * ones, mark * ones)


def groups_that_keep_their_marks(pool: MarkedPool) -> list[tuple[int, int, int]]:
    """(group, the one that writes into its blocks, block) where that goes unseen."""
    num_blocks, unseen = len(pool.writer), []
    for group, (places,) in enumerate(pool.places):
        for other, (others,) in enumerate(pool.places):
            for block in range(1, num_blocks):
                mine = places.marks(first_slots(np.array([block]), 1), pool.group_salts[group : group + 1])
                theirs = others.marks(first_slots(np.array([block]), 2), pool.group_salts[other : other + 1])
                pool.write(mine)
                pool.write(theirs)
                if pool.first_wrong(mine) is None:
                    unseen.append((group, other, block))
    return unseen


@pytest.mark.parametrize("order", [LAYER_OUTERMOST, BLOCK_OUTERMOST])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CONNECTED_KINDS])
def test_who_writes_into_a_block_is_seen_by_whoever_holds_it(kind, order):
    """Groups of fewer layers and of states among them."""
    try:
        layout, _ = build(scenario(kind, 300))
    except KVCacheError:
        assert "refused" in kind
        return
    assert groups_that_keep_their_marks(marked(layout, order)) == []


@pytest.mark.parametrize("name", ["gemma3-27b-shape", "chunked-13", "conversation-states", "conversation-sliding"])
def test_every_buffer_has_marks_when_a_run_is_over(name):
    replayed = replay_with_witness(read(FOLDER / f"{name}.json.gz")["scenario"], rereads=False, every_layer=False)
    assert [nth for nth, buffer in enumerate(replayed.pages.buffers) if not buffer.any()] == []


@pytest.mark.parametrize(
    ("model", "turns"), [("gemma-3-27b", 8), ("llama-3.1-8b", 32), ("jamba-v0.1", 4), ("llama-4-scout", 12)]
)
def test_a_block_has_its_turn_among_the_places_that_all_groups_have(model, turns):
    """Gemma's groups are of 8, 9 and 10 layers."""
    layout = deploy(Scenario(model=model, gpu="h100-80gb", tensor_parallel_size=4, max_model_len=32768)).layout
    pool = marked(replace(layout, num_blocks=40))
    assert pool.turns.num == turns
    assert groups_that_keep_their_marks(pool) == []


def test_pages_of_different_bytes_have_marks_in_every_layer():
    """Their second layers begin at different bytes of a block: only the first is where all have one."""
    wide, narrow = (
        FullAttentionSpec(block_size=4, num_kv_heads=heads, head_size=4, dtype="float16") for heads in (2, 1)
    )
    groups = (KVCacheGroup(layers=(0, 1), spec=wide), KVCacheGroup(layers=(2, 3, 4, 5), spec=narrow))
    pool = marked(KVCacheLayout(groups, num_blocks=8, max_model_len=64, max_in_flight_tokens=64), BLOCK_OUTERMOST)
    assert pool.turns.num == 1
    assert groups_that_keep_their_marks(pool) == []
