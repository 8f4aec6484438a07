"""Lives of requests on servers small enough to reckon by hand: steps take one second, blocks hold four tokens."""

import pytest

from tests.kvcache.pools import chunked, full, mamba, sliding
from tests.simulator.conftest import CHUNKS_LEAVE_NO_BUDGET, Arrival
from tests.simulator.stories import admission_of, block_of, cause_of, cut_of, last_wait, preempted, tell, waits

PREFIX = (1, 2, 3, 4, 5, 6, 7, 8)

# ------------------------------------------------------------------------------------------------- waiting


def test_who_arrives_during_a_step_waits_for_its_end():
    story = tell([Arrival(0.0, prompt=4, output=3), Arrival(0.25, prompt=4, output=1)], "b")
    assert waits(story) == [("step_running", "b", 0.25, 1.0)]
    assert (story.first_scheduled_s, story.end_s) == (1.0, 2.0)


def test_too_few_free_blocks():
    """Of 4 blocks "a" holds 3 while it computes 12 tokens, then all."""
    story = tell(
        [Arrival(0.0, prompt=12, output=3), Arrival(0.5, prompt=12, output=1)], "b", num_blocks=5, block_size=4
    )
    assert waits(story) == [("step_running", "b", 0.5, 1.0), ("blocks", "b", 1.0, 3.0)]
    wait = last_wait(story)
    assert (wait.needed_blocks, wait.free_blocks, wait.watermark_blocks, wait.reserve_tokens) == (3, 0, 0, 12)


def test_a_watermark_is_not_to_be_touched():
    """8 blocks are free beside the 2 of "a"; 10% of 21 blocks must stay so when "b" has taken its 17."""
    story = tell(
        [Arrival(0.0, prompt=4, output=3), Arrival(0.5, prompt=68, output=1)], "b", num_blocks=21, watermark=0.1
    )
    wait = last_wait(story)
    assert (wait.kind, wait.needed_blocks, wait.free_blocks, wait.watermark_blocks) == ("blocks", 17, 18, 2)


def test_a_hit_that_nobody_holds_needs_room_too():
    """Of 7 blocks "b" holds 5. Two more would do for "c", and two are free: those of its own hit."""
    story = tell(
        [
            Arrival(0.0, prompt=9, output=1, prefix_ids=(1, 2)),
            Arrival(1.5, prompt=16, output=3),
            Arrival(2.5, prompt=16, output=1, prefix_ids=(1, 2)),
        ],
        "c",
        num_blocks=8,
    )
    wait = last_wait(story)
    assert (wait.kind, wait.needed_blocks, wait.free_blocks) == ("blocks", 4, 2)
    assert admission_of(story).hit_tokens == 8


def test_behind_another_that_lacks_blocks():
    """The head of the queue blocks those behind it: "c" would fit."""
    story = tell(
        [Arrival(0.0, prompt=400, output=10), Arrival(0.5, prompt=300, output=1), Arrival(0.5, 20, 1)],
        "c",
        num_blocks=41,
        block_size=16,
    )
    assert waits(story) == [("step_running", "c", 0.5, 1.0), ("blocks", "b", 1.0, 10.0)]
    assert (last_wait(story).num_ahead, last_wait(story).needed_blocks) == (1, 19)


def test_max_num_seqs_is_reached():
    story = tell([Arrival(0.0, prompt=4, output=3), Arrival(0.0, prompt=4, output=2)], "b", max_num_seqs=1)
    assert waits(story) == [("max_num_seqs", "b", 0.0, 3.0)]
    assert last_wait(story).limit == 1


def test_the_token_budget_is_used_up():
    story = tell([Arrival(0.0, prompt=16, output=1), Arrival(0.0, prompt=4, output=1)], "b", max_num_batched_tokens=8)
    assert waits(story) == [("token_budget", "b", 0.0, 2.0)]
    assert last_wait(story).limit == 8


def test_the_next_state_is_beyond_the_token_budget():
    """States are kept every 8 tokens: beside the decode of "a" 7 tokens of the budget are left."""
    requests = [Arrival(0.0, prompt=4, output=4), Arrival(0.5, prompt=20, output=1)]
    story = tell(requests, "b", layers=[full(8), mamba(8)], block_size=8, max_num_batched_tokens=8)
    assert waits(story) == [("step_running", "b", 0.5, 1.0), ("state_boundary", "b", 1.0, 4.0)]


def test_a_state_that_this_step_writes_cannot_be_read_in_it():
    """Both arrive together: "b" could hit 16 tokens, whose state "a" is just writing."""
    requests = [Arrival(0.0, 24, 4, prefix_ids=(1, 2)), Arrival(0.0, 24, 1, prefix_ids=(1, 2))]
    story = tell(requests, "b", layers=[full(8), mamba(8)], block_size=8, max_num_batched_tokens=64)
    assert waits(story)[0] == ("state_being_written", "b", 0.0, 1.0)


def test_a_step_that_preempts_admits_nobody():
    """When "a" and "b" both grow, there is a block for "a" only; "b" gives way, and "c" is not looked at."""
    requests = [Arrival(0.0, 8, 5), Arrival(0.0, 8, 5), Arrival(0.5, prompt=4, output=1)]
    story = tell(requests, "c", num_blocks=6, max_num_seqs=2)
    kinds = [(kind, start_s, end_s) for kind, _, start_s, end_s in waits(story)]
    assert ("preemption", 1.0, 2.0) in kinds
    wait = next(wait for wait in story.attempts[0].waits if wait.kind == "preemption")
    assert (wait.by, wait.victim, wait.head) == ("b", "b", "b")


def test_waits_follow_each_other_from_arrival_to_admission():
    story = tell([Arrival(0.0, 8, 9), Arrival(0.0, 8, 5), Arrival(0.5, 12, 1), Arrival(0.7, 12, 1)], "d", num_blocks=6)
    spans = [(start_s, end_s) for _, _, start_s, end_s in waits(story)]
    assert [start for start, _ in spans] == [story.arrival_s, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == story.first_scheduled_s


# --------------------------------------------------------------------------------------------- preemption


@pytest.mark.parametrize(("async_scheduling", "at_s"), [(False, 2.0), (True, 1.0)])
def test_who_was_preempted_by_whom(async_scheduling, at_s):
    """Both need a third block, there is one: "b" loses eight tokens and hits them again; planned a step ahead."""
    story = tell(
        [Arrival(0.0, prompt=8, output=5), Arrival(0.5, prompt=8, output=5)],
        "b",
        num_blocks=6,
        async_scheduling=async_scheduling,
    )
    preemption = preempted(story.attempts[0])
    assert (preemption.by, preemption.needed_blocks, preemption.free_blocks) == ("b", 1, 0)
    assert preemption.lost_tokens == 8
    assert (admission_of(story, 0).hit_tokens, admission_of(story, 1).hit_tokens) == (0, 8)
    assert story.num_preemptions == 1


def test_the_last_admitted_yields_to_another():
    story = tell([Arrival(0.0, 8, 5), Arrival(0.0, 8, 5)], "b", num_blocks=5)
    preemption = preempted(story.attempts[0])
    assert (preemption.by, preemption.when.time_s, preemption.lost_tokens) == ("a", 1.0, 8)
    assert [chunk.tokens for chunk in story.attempts[0].chunks] == [8]


def test_what_was_evicted_meanwhile_is_computed_again():
    """ "a" grows into one of the two blocks that "b" gave back: the last one goes first."""
    story = tell([Arrival(0.0, prompt=8, output=9), Arrival(0.5, prompt=8, output=5)], "b", num_blocks=6)
    cause = cause_of(story)
    assert (cause.kind, cause.by, cause.computed_by, block_of(cause)) == ("evicted", "a", "b", (4, 8))
    assert cause.when.time_s == 5.0
    assert admission_of(story).hit_tokens == 4
    assert [chunk.tokens for chunk in story.attempts[1].chunks] == [5]


def test_missed_steps_are_counted():
    story = tell(name="c", **CHUNKS_LEAVE_NO_BUDGET)
    decode = story.attempts[0].decode
    assert (decode.num_missed_steps, decode.missed_s) == (2, 2.0)


# --------------------------------------------------------------------------------------------------- hits


def test_all_that_can_be_hit():
    story = tell([Arrival(0.0, 16, 1, PREFIX[:4]), Arrival(5.0, 16, 1, PREFIX[:4])], "b")
    admission = admission_of(story)
    assert (admission.hit_tokens, admission.max_hit_tokens) == (12, 12)
    assert [kind.cause.kind for kind in admission.types] == ["alignment"]


def test_nobody_had_computed_the_next_block():
    story = tell([Arrival(0.0, 8, 1, (1, 2)), Arrival(5.0, 20, 1, (1, 2, 33, 34))], "b")
    cause = cause_of(story)
    assert (cause.kind, block_of(cause), admission_of(story).hit_tokens) == ("never_computed", (8, 12), 8)


def test_another_was_still_computing_it():
    """When "b" is admitted, "a" has computed 12 tokens alone, and computes the next 8 in the same step."""
    requests = [Arrival(0.0, 32, 1, PREFIX), Arrival(0.5, 32, 1, PREFIX)]
    story = tell(requests, "b", max_num_batched_tokens=12, long_prefill_token_threshold=8)
    cause = cause_of(story)
    assert (cause.kind, cause.by, cause.tokens, block_of(cause)) == ("being_computed", "a", 20, (20, 24))


def test_the_shared_beginning_does_not_fill_the_block():
    """Prefix ids of 4 tokens, blocks of 8 in both groups: what they share ends after 12, within the second."""
    requests = [Arrival(0.0, 24, 1, (1, 2, 3)), Arrival(5.0, 24, 1, (1, 2, 3))]
    layers = [full(8), sliding(8, 4, num_kv_heads=2)]
    story = tell(requests, "b", layers=layers, block_size=4)
    cause = next(kind.cause for kind in admission_of(story).types if kind.name == "full attention")
    assert (cause.kind, cause.by, cause.tokens, block_of(cause)) == ("not_full", "a", 12, (8, 16))


def test_evicted_when_another_took_blocks():
    """Of 8 blocks "a" leaves 4 in the cache; "b" takes 6, so the last two of "a" go."""
    story = tell(
        [Arrival(0.0, 17, 1, PREFIX[:4]), Arrival(3.5, 24, 1), Arrival(9.0, 17, 1, PREFIX[:4])], "c", num_blocks=9
    )
    cause = cause_of(story)
    assert (cause.kind, cause.by, cause.when.time_s) == ("evicted", "b", 3.5)
    assert (cause.computed_by, cause.computed_when.time_s, block_of(cause)) == ("a", 0.0, (8, 12))
    assert admission_of(story).hit_tokens == 8


def test_sparse_retention_keeps_no_window_in_the_middle():
    """ "b" leaves the way of "a" after 16 tokens: full attention has them, the window before token 16 was not kept."""
    requests = [Arrival(0.0, 33, 1, PREFIX), Arrival(5.0, 33, 1, (1, 2, 3, 4, 95, 96))]
    server = {"layers": [full(4), sliding(8, 4)], "block_size": 4}
    story = tell(requests, "b", **server)
    cut, cause = cut_of(story), cause_of(story)
    assert (cut.name, cut.before, cut.after) == ("sliding window of 8", 16, 0)
    assert (cause.kind, cause.by, cause.when.time_s, cause.resume_at) == ("not_kept", "a", 0.0, 16)
    assert cause.setting == "--prefix-cache-retention-interval 16"
    assert admission_of(tell(requests, "b", retention=16, **server)).hit_tokens == 16


def test_a_state_that_was_written_and_not_kept():
    """A budget of 16: "a" has states after 16 and 32 tokens, and keeps the last before its prompt's end, after 32."""
    requests = [Arrival(0.0, 40, 1, (1, 2, 3, 4)), Arrival(9.0, 40, 1, (1, 2, 83, 84))]
    server = {"layers": [full(8), mamba(8)], "block_size": 8, "max_num_batched_tokens": 16}
    story = tell(requests, "b", **server)
    cause = cause_of(story)
    assert (cut_of(story).name, cut_of(story).after) == ("Mamba states", 0)
    assert (cause.kind, cause.by, cause.when.time_s, cause.resume_at) == ("not_kept", "a", 0.0, 16)
    assert cause.setting == "--prefix-cache-retention-interval 16"
    assert admission_of(tell(requests, "b", retention=16, **server)).hit_tokens == 16


def test_no_state_where_no_step_ended():
    """With a budget for all 40 tokens, "a" writes a state after 32 only: none after 16, kept or not."""
    requests = [Arrival(0.0, 40, 1, (1, 2, 3, 4)), Arrival(9.0, 40, 1, (1, 2, 83, 84))]
    story = tell(requests, "b", layers=[full(8), mamba(8)], block_size=8, max_num_batched_tokens=64)
    cause = cause_of(story)
    assert (cause.kind, cause.by, cause.when.time_s, block_of(cause), cause.tokens) == (
        "no_state",
        "a",
        0.0,
        (8, 16),
        0,
    )


def test_hits_are_rounded_down_to_what_all_groups_can_end_on():
    """Full attention has 12 shared tokens in blocks of 4; the other group's blocks hold 8."""
    requests = [Arrival(0.0, 24, 1, (1, 2, 3)), Arrival(5.0, 24, 1, (1, 2, 3))]
    layers = [full(4, num_kv_heads=2), sliding(8, 8)]
    story = tell(requests, "b", layers=layers, block_size=4)
    kind = next(kind for kind in admission_of(story).types if kind.name == "full attention")
    assert (kind.tokens, kind.cause.rounded_from, kind.cause.resume_at) == (8, 12, 16)


def test_chunked_attention_needs_its_chunk_only():
    requests = [Arrival(0.0, 33, 1, PREFIX), Arrival(5.0, 33, 1, (1, 2, 3, 4, 5, 96))]
    story = tell(requests, "b", layers=[full(4), chunked(16, 4)], block_size=4)
    assert [(kind.name, kind.tokens) for kind in admission_of(story).types] == [
        ("full attention", 20),
        ("chunked attention of 16", 32),
    ]
    assert admission_of(story).hit_tokens == 20


def test_without_prefix_caching_there_are_no_hits():
    story = tell([Arrival(0.0, 9, 1, (1, 2)), Arrival(5.0, 9, 1, (1, 2))], "b", enable_prefix_caching=False)
    assert (admission_of(story).types, admission_of(story).hit_tokens) == ((), 0)


# ---------------------------------------------------------------------------------------------- the end


def test_a_prompt_that_never_fits_is_rejected():
    story = tell([Arrival(0.0, prompt=8, output=2), Arrival(0.5, prompt=40, output=1)], "b", num_blocks=6)
    assert (story.status, story.reason) == ("rejected", "its tokens need more blocks than the pool has")
    assert last_wait(story).kind == "blocks"


def test_chunks_and_decodes_add_up():
    story = tell([Arrival(0.0, prompt=20, output=6)], "a", max_num_batched_tokens=8)
    (attempt,) = story.attempts
    assert [(chunk.start_s, chunk.end_s, chunk.tokens, chunk.computed_before) for chunk in attempt.chunks] == [
        (0.0, 1.0, 8, 0),
        (1.0, 2.0, 8, 8),
        (2.0, 3.0, 4, 16),
    ]
    decode = attempt.decode
    assert (decode.start_s, decode.end_s, decode.computed_before, decode.computed_after) == (3.0, 8.0, 20, 25)
