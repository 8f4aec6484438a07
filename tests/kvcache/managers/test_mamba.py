"""Mamba: one state stands for all tokens before it, and a prefix is resumed where a state was kept."""

import pytest

from kvcache.errors import KVCacheError
from kvcache.specs import MambaSpec
from tests.kvcache.pools import full, hit_of, mamba, manager_of, request_of, serve


@pytest.fixture
def hybrid():
    """Qwen3.5-like: attention blocks of 528 tokens and states at their ends."""
    return manager_of(full(528), mamba(528))


def states_of(request):
    """Positions of a request's table that hold a state."""
    return request.tables[1].positions


@pytest.mark.parametrize(("prompt", "hit"), [(527, 0), (528, 0), (529, 528), (2_200, 2_112), (5_500, 5_280)])
def test_an_identical_prompt_resumes_at_the_last_block_end_before_its_last_token(hybrid, prompt, hit):
    """The scheduler ends a chunk there, so that its state is kept."""
    serve(hybrid, range(prompt), (prompt - 1) // 528 * 528)
    assert hit_of(hybrid, range(prompt)) == hit


def test_a_state_is_kept_where_a_chunk_ends_and_nowhere_else(hybrid):
    """One chunk of four blocks leaves one state behind, that of its end."""
    request = request_of(hybrid, range(2_200))
    hybrid.admit(request, 0, 2_112)
    assert (states_of(request), len(request.tables[0].ids)) == ([3], 4)


def test_the_state_that_a_step_starts_from_stays_until_the_step_is_settled(hybrid):
    request = request_of(hybrid, range(2_200))
    hybrid.admit(request, 0, 1_056)
    positions = [list(states_of(request))]
    for settled, planned in [(0, 1_584), (1_056, 2_112), (1_584, 2_200)]:
        hybrid.extend(request, settled, planned)
        positions.append(list(states_of(request)))
    assert positions == [[1], [1, 2], [1, 2, 3], [2, 3, 4]]


def test_decoding_within_a_block_keeps_one_state(hybrid):
    request = request_of(hybrid, range(2_300))
    hybrid.admit(request, 0, 2_200)
    held = []
    for computed in (2_200, 2_201, 2_250):
        hybrid.extend(request, computed, computed + 1)
        held.append(list(states_of(request)))
    assert held == [[4], [4], [4]]


def test_a_hit_starts_from_a_copy_of_the_cached_state(hybrid):
    """The cached state is held, and the next one gets a block of its own."""
    serve(hybrid, range(2_200), 2_112)
    request = request_of(hybrid, range(2_200))
    hybrid.new_step()
    hybrid.admit(request, 2_112, 2_200)
    assert states_of(request) == [3, 4]


def test_a_state_that_this_step_writes_can_be_read_in_the_next(hybrid):
    """An identical prompt waits one step instead of computing everything again."""
    first, second = request_of(hybrid, range(2_200)), request_of(hybrid, range(2_200))
    hybrid.admit(first, 0, 2_112)
    hit = hybrid.find_hit(second, 2_200)
    answers = [hybrid.admit(second, hit, 2_200)]
    hybrid.new_step()
    answers.append(hybrid.admit(second, hit, 2_200))
    assert (hit, answers) == (2_112, [False, True])


def test_prompts_that_part_within_the_last_block_resume_from_the_second_time_on(hybrid):
    """The first to share a beginning of three blocks finds no state there and leaves one behind for its successors."""
    beginning = list(range(1_600))
    serve(hybrid, [*beginning, *range(5_000, 5_600)], 2_112)
    hits = []
    for tail in (6_000, 7_000):
        tokens = [*beginning, *range(tail, tail + 600)]
        hits.append(serve(hybrid, tokens, 1_584, 2_112))
    assert hits == [0, 1_584]


def test_without_caching_a_request_has_one_state_for_its_whole_life():
    manager = manager_of(full(16), mamba(4_096, "none", page_tokens=16), enable_prefix_caching=False)
    request = request_of(manager, range(1_000))
    manager.admit(request, 0, 500)
    before = list(request.tables[1].ids)
    for computed in range(500, 1_000):
        manager.extend(request, computed, computed + 1)
    assert (len(before), request.tables[1].ids) == (1, before)


def test_a_state_has_no_slots_to_fill(hybrid):
    request = request_of(hybrid, range(2_200))
    hybrid.admit(request, 0, 600)
    empty = [each.num_empty_slots(table, 600) for each, table in zip(hybrid.managers, request.tables, strict=True)]
    assert empty == [2 * 528 - 600, 0]


def test_states_for_speculative_tokens_are_refused():
    spec = MambaSpec(block_size=16, shapes=((32,),), dtypes=("bfloat16",), num_speculative_blocks=1)
    with pytest.raises(KVCacheError, match="planned but not scheduled yet"):
        manager_of(full(), spec, enable_prefix_caching=False)
