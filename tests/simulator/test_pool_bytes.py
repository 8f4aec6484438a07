"""Where the pool's bytes are: parts that add up to it, in whatever state a server is, as a look at every slot finds."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcache.block_pool import BlockPool
from kvcache.errors import InvariantError
from kvcache.ledger import LEDGER_PARTS
from kvcache.manager import KVCacheManager
from models_configs.reach import Chunk, Window
from simulator.pool_bytes import PoolBytes
from simulator.running import contexts_before_step
from simulator.scheduler import Scheduler
from simulator.table import frame_of
from tests.kvcache.pools import TOKEN_BYTES, chunked, full, mamba, sliding
from tests.simulator.conftest import Arrival, new_request, new_scheduler, run

BLOCK = 4 * TOKEN_BYTES
"""Bytes of a block of four tokens in one layer."""


def bytes_after_steps(*arrivals: Arrival, num_steps: int = 1, **server) -> dict[str, float]:
    """What is not 0 while a step is planned, by default the first, in which all prompts are computed."""
    scheduler = new_scheduler(**server)
    for serial, arrival in enumerate(arrivals):
        scheduler.add(new_request(scheduler, f"r{serial}", serial, arrival))
    for _ in range(num_steps - 1):
        scheduler.schedule(now_s=0.0)
        scheduler.complete(now_s=0.0)
    parts = PoolBytes(scheduler).sample(scheduler.schedule(now_s=0.0))
    return {name: part for name, part in zip(LEDGER_PARTS, parts, strict=True) if part}


def test_a_prompt_leaves_its_last_block_partly_empty():
    """Six tokens in two blocks of four, in a pool of ten with the null block: reserved first, then there to be read."""
    free = {"free": 7 * BLOCK, "null_block": BLOCK}
    first = bytes_after_steps(Arrival(0.0, prompt=6, output=4), num_blocks=10)
    assert first == {"reserved": 6 * TOKEN_BYTES, "empty_slots": 2 * TOKEN_BYTES, **free}
    second = bytes_after_steps(Arrival(0.0, prompt=6, output=4), num_blocks=10, num_steps=2)
    assert second == {"readable": 6 * TOKEN_BYTES, "reserved": TOKEN_BYTES, "empty_slots": TOKEN_BYTES, **free}


def test_a_shared_block_counts_once():
    """Two prompts of nine tokens share two blocks and own one each."""
    parts = bytes_after_steps(*[Arrival(0.0, 9, 3, prefix_ids=(1, 2))] * 2, num_blocks=10, num_steps=2)
    assert (parts["readable"], parts["reserved"], parts["free"]) == (10 * TOKEN_BYTES, 2 * TOKEN_BYTES, 5 * BLOCK)


def test_a_token_leaves_the_window_before_its_block_does():
    """Ten tokens computed, a window of six: the eleventh reads five of them, and one is held though nobody reads it."""
    layers = [sliding(6, 4)]
    parts = bytes_after_steps(Arrival(0.0, prompt=9, output=5), layers=layers, num_blocks=10, num_steps=3)
    assert (parts["readable"], parts["out_of_window"]) == (5 * TOKEN_BYTES, TOKEN_BYTES)


def test_a_window_kept_whole_is_mostly_waste():
    """Hybrid manager off: of 21 tokens the layer with a window of six reads five."""
    layers = [full(4), full(4, window=6)]
    parts = bytes_after_steps(Arrival(0.0, prompt=21, output=5), layers=layers, num_blocks=10, num_steps=2)
    assert (parts["readable"], parts["out_of_window"]) == (26 * TOKEN_BYTES, 16 * TOKEN_BYTES)


def test_groups_of_unequal_size_are_padded():
    """Three full and five sliding layers make groups of 3, 3 and 2: one of nine places in each block is padding."""
    layers = [full(4)] * 3 + [sliding(8, 4)] * 5
    parts = bytes_after_steps(Arrival(0.0, prompt=8, output=2), layers=layers, num_blocks=10)
    assert (parts["reserved"], parts["padding_layers"]) == (2 * 8 * BLOCK, 2 * BLOCK)


def test_a_state_is_padded_to_the_page_of_the_attention_beside_it():
    """A state of three tokens' size in a page of four; it is there from the first token on."""
    layers = [full(4), mamba(4, page_tokens=3).with_page_bytes(BLOCK)]
    parts = bytes_after_steps(Arrival(0.0, prompt=1, output=2), layers=layers, num_blocks=10)
    assert (parts["states"], parts["empty_slots"], parts["state_padding"]) == (
        3 * TOKEN_BYTES, 3 * TOKEN_BYTES, TOKEN_BYTES
    )  # fmt: skip


def test_a_cached_window_is_unreachable_once_full_attention_has_lost_its_prefix():
    """Nine shared tokens are left behind: two blocks of each type. A request of 15 tokens evicts full attention's."""
    server = {"layers": [full(4), sliding(9, 4)], "num_blocks": 9}
    parts = bytes_after_steps(Arrival(0.0, 9, 1, (1, 2)), Arrival(0.0, 1, 9), num_steps=2, **server)
    assert (parts["cached_full"], parts["cached_sliding"]) == (2 * BLOCK, 2 * BLOCK)
    parts = bytes_after_steps(Arrival(0.0, 9, 1, (1, 2)), Arrival(1.0, 9, 9), num_steps=2, max_num_seqs=1, **server)
    assert "cached_full" not in parts
    assert parts["unreachable"] == 2 * BLOCK


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
    "small window": [full(4), sliding(2, 4)],
    "window alone": [sliding(7, 4)] * 2,
    "windows kept whole": [full(4), full(4, window=6), full(4, window=6)],
    "chunks": [full(4), *[chunked(16, 4)] * 3],
    "states": [full(4), *[mamba(4, page_tokens=3).with_page_bytes(BLOCK)] * 3],
    "states beside windows": [full(4), sliding(9, 4), mamba(4, page_tokens=3).with_page_bytes(BLOCK)],
    "unequal heads": [full(4), full(4, num_kv_heads=2), sliding(9, 4)],
    "windows in smaller blocks": [full(4), sliding(9, 4, num_kv_heads=2), sliding(9, 4, num_kv_heads=2)],
}


def scan(scheduler: Scheduler, keys_of_all: list[list[int]]) -> dict[str, int]:
    """The parts as a look at every slot and every key finds them."""
    manager = scheduler.manager
    parts = Counter({"null_block": manager.layout.bytes_per_block})
    planned = scheduler.plan.num_tokens()
    for nth, single in enumerate(manager.managers):
        for position_of_group, number in enumerate(single.groups):
            group = manager.layout.groups[number]
            slots: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
            held = set()
            for request, computed in contexts_before_step(scheduler):
                table = request.blocks.tables[nth]
                end = computed + planned.get(request.order, int(request.is_decoding))
                ids = table.ids[position_of_group :: single.num_groups]
                held |= set(ids)
                for index, block in enumerate(ids if single.spec.kind != "mamba" else ()):
                    for offset in range(single.block_size):
                        token = (table.first_held + index) * single.block_size + offset
                        slots.setdefault((block, offset), []).append((token, computed, end))
            for spec in group.specs:
                if single.spec.kind == "mamba":
                    parts["states"] += len(held) * spec.state_bytes
                    parts["state_padding"] += len(held) * (spec.page_bytes - spec.state_bytes)
                    continue
                parts["page_padding"] += len(held) * (spec.page_bytes - spec.content_bytes)
                for readers in slots.values():
                    parts[slot_part(spec, readers)] += spec.token_bytes
            parts["padding_layers"] += len(held) * (manager.layout.bytes_per_block - group.bytes_per_block)
    scan_free(manager, keys_of_all, parts)
    return {name: part for name, part in parts.items() if part}


def slot_part(spec, readers: list[tuple[int, int, int]]) -> str:
    """Of a slot that these requests hold, each with (token in the slot, computed, computed and planned)."""
    if any(computed <= token < end for token, computed, end in readers):
        return "reserved"
    if any(computed - spec.seen_before(computed) <= token < computed for token, computed, _ in readers):
        return "readable"
    return "out_of_window" if any(token < computed for token, computed, _ in readers) else "empty_slots"


def scan_free(manager: "RecordingManager", keys_of_all: list[list[int]], parts: Counter[str]) -> None:
    """A prefix is gone if full attention's block had its key once and has it no more."""
    pool, block_bytes = manager.pool, manager.layout.bytes_per_block
    gone = pool.ever_hashed - pool.block_of.keys()
    parts["free"] += len(pool._unhashed) * block_bytes
    kinds = {offset: single for single in manager.managers for offset in single.key_offsets}
    units = manager.scheduler_block // manager.hash_unit
    for key, _ in pool._queued():
        stride = len(manager.layout.groups)
        single, prefix = kinds[key % stride], key - key % stride
        is_reachable = True
        if single.is_anchored:
            hit_ends = [(keys, (keys.index(prefix) // units + 1) * units) for keys in keys_of_all if prefix in keys]
            is_reachable = any(keys[end - 1] not in gone for keys, end in hit_ends)
        parts[f"cached_{single.spec.kind}" if is_reachable else "unreachable"] += block_bytes


class RecordingPool(BlockPool):
    """Remembers every key that it was ever given."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.ever_hashed: set[int] = set()

    def hash_blocks(self, keys: list[int], *arguments) -> None:
        self.ever_hashed.update(keys)
        super().hash_blocks(keys, *arguments)


class RecordingManager(KVCacheManager):
    """A manager with such a pool."""

    def __init__(self, layout, settings) -> None:
        super().__init__(layout, settings, RecordingPool(layout.num_blocks))


arrivals = st.builds(
    lambda at_s, prompt, output, shared: Arrival(at_s, prompt, output, tuple(range(shared))),
    st.integers(0, 30), st.integers(1, 40), st.integers(1, 20), st.integers(0, 15),
)  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=30)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=6), num_blocks=st.integers(16, 100), is_async=st.booleans(),
    is_summed=st.booleans(),
)  # fmt: skip
def test_the_ledger_is_what_a_look_at_every_slot_finds(name, requests, num_blocks, is_async, is_summed):
    """In every step, with hits, evictions and preemptions, whether or not the scheduler sums up what is read."""
    specs = [spec for spec in LAYERS[name] if spec.kind != "mamba" and spec.reach]
    reaches = [Window(spec.reach[1]) if spec.reach[0] == "window" else Chunk(spec.reach[1]) for spec in specs]
    budgets, keys_of_all = set(), {}
    # Where requests part within a step of hits, a window before that belongs to both: here they part at its ends.
    step = new_scheduler(layers=LAYERS[name]).manager.scheduler_block // 4
    requests = [replace(each, prefix_ids=each.prefix_ids[: len(each.prefix_ids) // step * step]) for each in requests]

    def compare(scheduler: Scheduler, batch) -> None:
        for request, _ in contexts_before_step(scheduler):
            # Long enough for every hit that could use its last block.
            keys_of_all[request.request_id] = list(request.blocks.keys.first(40))
        parts = PoolBytes(scheduler).sample(batch)
        found = {name: part for name, part in zip(LEDGER_PARTS, parts, strict=True) if part}
        assert found == scan(scheduler, list(keys_of_all.values()))
        budgets.add(sum(parts))

    log = run(
        requests, layers=LAYERS[name], num_blocks=num_blocks, max_num_batched_tokens=16, async_scheduling=is_async,
        reaches=tuple(dict.fromkeys(reaches)) if is_summed else (), on_planned=compare, manager_type=RecordingManager,
    )  # fmt: skip
    assert budgets == {log.scheduler.manager.layout.pool_bytes}


@settings(max_examples=30)
@given(requests=st.lists(arrivals, min_size=1, max_size=6), is_async=st.booleans())
def test_what_is_read_is_held_even_where_chunks_start_within_blocks(requests, is_async):
    """A request may resume within a chunk whose first block nobody holds: as on a server, it reads nothing."""
    budgets = set()
    run(
        requests, layers=[full(4), chunked(6, 4)], num_blocks=20, max_num_batched_tokens=16, async_scheduling=is_async,
        on_planned=lambda scheduler, batch: budgets.add(sum(PoolBytes(scheduler).sample(batch))),
    )  # fmt: skip
    assert budgets == {20 * BLOCK}


UNPADDED = {
    "full and window": [full(4), sliding(9, 4)],
    "five windows": [full(4)] * 2 + [sliding(9, 4)] * 5,
    "states": [full(4), *[mamba(4, page_tokens=3)] * 3],
    "states and windows": [full(4), sliding(6, 4, num_kv_heads=2), mamba(4, page_tokens=5)],
    "chunks": [full(4), *[chunked(16, 4)] * 3],
    "full": [full(4)] * 2,
}


@pytest.mark.parametrize("name", UNPADDED)
@settings(max_examples=40)
@given(
    requests=st.lists(arrivals, min_size=1, max_size=6), num_pages=st.integers(12, 60), is_async=st.booleans(),
    retention=st.sampled_from([0, None]), watermark=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
@example(  # decodes that take large pages where others have small ones left
    requests=[Arrival(2, 1, 5), Arrival(2, 9, 5), Arrival(4, 3, 3)], num_pages=12, is_async=False, retention=0,
    watermark=0.0,
)  # fmt: skip
def test_large_pages_hold_every_byte(name, requests, num_pages, is_async, retention, watermark):
    """Two levels: in every step the parts add up, pool and tables agree (`run` asks), and all requests end."""
    budgets = set()
    log = run(
        requests, layers=UNPADDED[name], grouping="two-level", num_blocks=num_pages, max_num_batched_tokens=16,
        async_scheduling=is_async, retention=retention, watermark=watermark,
        on_planned=lambda scheduler, batch: budgets.add(sum(PoolBytes(scheduler).sample(batch))),
    )  # fmt: skip
    assert budgets == {log.scheduler.manager.layout.pool_bytes}
    assert {*log.rejected, *(name for name, each in log.requests.items() if each.finish_s is not None)} == {
        *log.requests
    }
    assert log.scheduler.manager.pool.num_free == num_pages - 1


def test_a_long_hit_leaves_each_type_its_own_large_pages():
    """Two levels: behind a hit of 40 tokens the whole window counts as less than what its next 16 tokens take."""
    prefix = tuple(range(10))
    log = run(
        [Arrival(0.0, 41, 1, prefix), Arrival(50.0, 101, 1, prefix)], layers=[full(4), sliding(9, 4)],
        grouping="two-level", num_blocks=60, max_num_batched_tokens=16,
    )  # fmt: skip
    assert log.requests["b"].cached_tokens == 40


def test_what_is_cached_without_its_beginning_is_no_hit():
    """Two levels: large pages go one by one, and the one with a prompt's beginning may go before those behind it.

    The five preempt each other, come back, and look for what they had computed.
    """
    prompts = [
        Arrival(0.0, 25, 18),
        Arrival(0.0, 26, 16),
        Arrival(0.0, 25, 14),
        Arrival(0.0, 26, 1),
        Arrival(0.0, 28, 10),
    ]
    log = run(
        prompts, layers=UNPADDED["states and windows"], grouping="two-level", num_blocks=12, max_num_batched_tokens=16,
        async_scheduling=False,
    )  # fmt: skip
    assert all(request.finish_s is not None for request in log.requests.values())


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if name not in ("unequal heads", "windows in smaller blocks")]
)
@settings(max_examples=20)
@given(requests=st.lists(arrivals, min_size=1, max_size=6), num_blocks=st.integers(16, 100), is_async=st.booleans())
def test_the_documents_pool_holds_every_byte(name, requests, num_blocks, is_async):
    """One queue of free blocks, and every full block cached."""

    def compare(scheduler: Scheduler, batch) -> None:
        parts = PoolBytes(scheduler).sample(batch)
        assert sum(parts) == num_blocks * scheduler.manager.layout.bytes_per_block

    log = run(
        requests, layers=LAYERS[name], is_document=True, num_blocks=num_blocks, max_num_batched_tokens=16,
        async_scheduling=is_async, on_planned=compare,
    )  # fmt: skip
    assert log.scheduler.manager.pool.num_free == num_blocks - 1


@pytest.mark.parametrize("counter", ["num_positions", "num_given_back", "num_cached", "num_unreachable"])
def test_a_miscount_breaks_the_ledger(counter):
    """ledger-adds-up: a block that is counted where it is not."""
    scheduler = new_scheduler(layers=[full(4), sliding(9, 4)], num_blocks=10)
    scheduler.add(new_request(scheduler, "a", 0, Arrival(0.0, 9, 3)))
    batch = scheduler.schedule(now_s=0.0)
    PoolBytes(scheduler).sample(batch)
    tally = scheduler.manager.managers[1].tally
    setattr(tally, counter, getattr(tally, counter) + 1)
    with pytest.raises(InvariantError, match="ledger-adds-up"):
        PoolBytes(scheduler).sample(batch)
