"""Every slot holds what the trace says: over vLLM's recorded schedules, random traffic, and planted faults.

The witness sees each step on its own here, reads all that the step attends to, and marks every layer; a few runs take
its short cuts, and mark the layers whose turn it is, as `--back-with` does.
"""

from pathlib import Path

import pytest

from kvcache import block_pool
from kvcache.block_pool import BlockPool
from kvcache.errors import InvariantError, KVCacheError
from kvcache.managers import (
    ChunkedLocalManager,
    MambaAlignManager,
    MambaManager,
    SingleTypeManager,
    SlidingWindowManager,
)
from kvcache.placement import BLOCK_OUTERMOST
from kvcache.specs import cdiv
from tests.conformance.generate import ASYNC_KINDS, CONNECTED_KINDS, KINDS, scenario
from tests.conformance.record import FOLDER, read
from tests.simulator.witnessed import replay_with_witness

READS_WHAT_WAS_NEVER_COMPUTED = {"chunked-8", "mla-mixed-2"}
"""vLLM's own schedules under `--scheduling-policy priority`: a block is hashed when the step that fills it is planned;
if the request is preempted for somebody more urgent in that very step, the block stays to be hit with nothing in it."""


def recorded(name: str) -> dict:
    return read(FOLDER / f"{name}.json.gz")


NAMES = [path.name.removesuffix(".json.gz") for path in sorted(FOLDER.glob("*.json.gz"))]
ANSWERED = [
    name for name in NAMES
    if "summary" in recorded(name) and not name.removeprefix("async-").startswith(CONNECTED_KINDS)
]  # fmt: skip
"""A witness knows nothing of contents that come from elsewhere."""
SOUND = [name for name in ANSWERED if name not in READS_WHAT_WAS_NEVER_COMPUTED]


@pytest.mark.parametrize("name", SOUND)
def test_every_slot_of_a_recorded_schedule_holds_what_it_should(name):
    row = recorded(name)
    assert replay_with_witness(row["scenario"]).num_tokens == row["summary"]["scheduled_tokens"]


@pytest.mark.parametrize("name", sorted(READS_WHAT_WAS_NEVER_COMPUTED))
def test_vllm_reads_what_was_never_computed_under_priority(name):
    with pytest.raises(InvariantError, match="own-marks: request r"):
        replay_with_witness(recorded(name)["scenario"])


@pytest.mark.parametrize("name", SOUND[::5])
def test_rows_of_steps_and_short_cuts_find_no_fault_either(name):
    """With the pool laid out block by block, for once."""
    row = recorded(name)
    short = {"rereads": False, "every_layer": False, "one_by_one": False}
    replayed = replay_with_witness(row["scenario"], **short, order=BLOCK_OUTERMOST)
    assert replayed.num_tokens == row["summary"]["scheduled_tokens"]


STEPS = 50_000
SEEDS = range(300, 306)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_traffic_in_tight_pools(seed):
    """Together the seeds see at least 50,000 steps of all kinds of models, with hits and preemptions in most runs."""
    num_steps = num_preempted = num_hit = num_runs = 0
    for kind in KINDS + ASYNC_KINDS:
        if kind.removeprefix("async-") in CONNECTED_KINDS:
            continue
        drawn = scenario(kind, seed)
        drawn.pop("policy", None)  # see READS_WHAT_WAS_NEVER_COMPUTED
        try:
            replayed = replay_with_witness(drawn)
        except KVCacheError:
            assert "refused" in kind
            continue
        num_runs += 1
        num_steps += replayed.num_steps
        num_preempted += any(request.num_preemptions for request in replayed.requests)
        num_hit += any(request.cached_tokens for request in replayed.requests)
    assert num_steps >= STEPS / len(SEEDS)
    assert num_preempted > num_runs / 3
    assert num_hit > num_runs / 2


# ------------------------------------------------------------------------------------------ planted faults


def one_block_too_early(original):
    return lambda self, num_computed: original(self, num_computed) + self.block_size


def every_group_gets_the_first_ones_blocks(original):
    def extend(self, table, num_tokens):
        original(self, table, num_tokens)
        table.ids[1 :: self.num_groups] = table.ids[0 :: self.num_groups]

    return extend


def writes_on_in_the_state(original):
    def extend(self, table, num_tokens):
        if num_tokens > table.num_slots and table.ids:
            table.num_slots = cdiv(num_tokens, self.block_size) * self.block_size
            table.add_state(cdiv(num_tokens, self.block_size) - 1, table.ids[-self.num_groups :], None)
        else:
            original(self, table, num_tokens)

    return extend


def counts_one_slot_more(original):
    def extend(self, table, num_tokens):
        original(self, table, num_tokens)
        table.num_slots += 1

    return extend


def leaves_the_map_alone(original):
    return lambda self, keys, blocks, is_anchor: None


def may_always(original):
    return lambda self, keys, hit_tokens: True


def gives_a_held_block_too(original):
    def take(self, num_blocks, beside=()):
        taken = original(self, num_blocks)
        self.taken_before = [*getattr(self, "taken_before", []), *taken][-40:]
        return [*taken[:-1], self.taken_before[0]] if len(taken) > 1 else taken

    return take


FAULTS = {
    "free too early: a window": (SlidingWindowManager, "first_needed_token", one_block_too_early, "gemma3-27b-shape"),
    "free too early: a chunk": (ChunkedLocalManager, "first_needed_token", one_block_too_early, "chunked-13"),
    "group offset wrong": (SingleTypeManager, "extend", every_group_gets_the_first_ones_blocks, "gemma3-27b-shape"),
    "cached state written in place": (MambaAlignManager, "extend", writes_on_in_the_state, "conversation-states"),
    "off-by-one slot": (SingleTypeManager, "extend", counts_one_slot_more, "conversation-full"),
    "evicted block still mapped": (BlockPool, "_forget", leaves_the_map_alone, "outgrowing-the-pool-full"),
    "a state hit in the step that writes it": (MambaManager, "may_take_hit", may_always, "state-in-the-same-step"),
    "a block given to two": (BlockPool, "take", gives_a_held_block_too, "conversation-sliding"),
}
is_compiled = not str(Path(block_pool.__file__)).endswith(".py")


@pytest.mark.skipif(is_compiled, reason="compiled methods cannot be replaced")
@pytest.mark.parametrize("every_layer", [True, False], ids=["every layer", "layers in turn"])
@pytest.mark.parametrize("rereads", [True, False], ids=["full reads", "short cuts"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen_in_memory(fault, rereads, every_layer, monkeypatch):
    owner, method, replacement, name = FAULTS[fault]
    monkeypatch.setattr(owner, method, replacement(getattr(owner, method)))
    with pytest.raises(InvariantError, match=r"^(own-marks|within-reach): request r"):
        replay_with_witness(recorded(name)["scenario"], rereads=rereads, every_layer=every_layer)


@pytest.mark.skipif(is_compiled, reason="compiled methods cannot be replaced")
def test_the_error_names_reader_layer_position_block_and_writer(monkeypatch):
    monkeypatch.setattr(BlockPool, "_forget", leaves_the_map_alone(None))
    with pytest.raises(InvariantError) as error:
        replay_with_witness(recorded("outgrowing-the-pool-full")["scenario"])
    assert str(error.value) == (
        "own-marks: request r3 reads token 16 of layer 0 in block 11, slot 0,"
        " and finds what request r2 wrote for token 80 of layer 0"
    )
