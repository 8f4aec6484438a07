"""How several attention types agree on one hit."""

import pytest

from tests.kvcache.pools import chunked, full, hash_positions, hit_of, manager_of, request_of, serve, sliding

NEW = range(10_000, 20_000)
"""Tokens that no earlier prompt has."""


def test_full_attention_is_cut_back_to_the_window_within_it():
    """Full attention has 288 common tokens. Windows are cached before 304, the end of one prompt, and before 128,
    the end of another that began alike.
    """
    manager = manager_of(full(), sliding(64))
    serve(manager, range(320))
    serve(manager, range(144))
    assert hit_of(manager, [*range(300), *NEW[:20]]) == 128


def test_where_prompts_part_beyond_every_window_nothing_is_reused():
    manager = manager_of(full(), sliding(64))
    serve(manager, range(320))
    assert hit_of(manager, [*range(300), *NEW[:20]]) == 0


def test_types_shorten_the_hit_in_turn_until_all_accept_it():
    """The wide window has 11 blocks, the narrow one an end at 10 or 4, which the wide one has only from 4 down."""
    manager = manager_of(full(), sliding(17), sliding(49))
    request = request_of(manager, range(16 * 12 + 1))
    hash_positions(manager, request, range(12), group=0)
    hash_positions(manager, request, [3, 9], group=1)
    hash_positions(manager, request, [0, 1, 2, 3, 8, 9, 10], group=2)
    assert manager.find_hit(request, 16 * 12 + 1) == 16 * 4


def test_no_full_attention_is_needed():
    """Chunks of 64 and windows of 32: the window before token 112 is cached, and so is the chunk's part."""
    manager = manager_of(chunked(64), sliding(32))
    serve(manager, range(113))
    assert hit_of(manager, [*range(113), *NEW[:50]]) == 112


@pytest.mark.parametrize(("positions", "hit"), [([4, 5], 96), ([3, 4], 80), ([], 0)])
def test_every_group_of_a_type_must_have_the_block(positions, hit):
    """A model with two sliding groups, one of which may have lost its window."""
    manager = manager_of(full(), sliding(32), sliding(32))
    request = request_of(manager, range(100))
    for group, cached in enumerate([range(6), range(6), positions]):
        hash_positions(manager, request, [*cached, 6], group)
    assert manager.find_hit(request, 100) == hit


@pytest.mark.parametrize(("common", "junction"), [(320, 320), (300, 288), (130, 128), (10, 0)])
def test_a_junction_is_what_one_type_has_beyond_the_common_hit(common, junction):
    """There requests part, so a window is worth keeping there. Full attention caches what lies behind the last one."""
    manager = manager_of(full(), sliding(64))
    serve(manager, range(320))
    request = request_of(manager, [*range(common), *NEW[: 400 - common]])
    manager.find_hit(request, 400)
    assert request.junction == junction


def test_the_second_to_part_at_a_junction_leaves_a_window_there_for_the_third():
    manager = manager_of(full(), sliding(64))
    serve(manager, range(320))
    hits = [serve(manager, [*range(300), *NEW[start : start + 20]]) for start in (0, 100, 200)]
    assert hits == [0, 288, 288]


def test_with_prefix_caching_off_nothing_is_found_and_nothing_hashed():
    manager = manager_of(full(), sliding(64), enable_prefix_caching=False)
    serve(manager, range(320))
    assert (hit_of(manager, range(320)), manager.pool.block_of) == (0, {})


# A request that waits asks again in every step.


def test_asking_again_gives_the_same_junction():
    """No full attention: the narrow window has more than the wide one."""
    manager = manager_of(sliding(17), sliding(65))
    request = request_of(manager, range(200))
    hash_positions(manager, request, [3, 7], group=0)
    hash_positions(manager, request, [0, 1, 2, 3], group=1)
    answers = [(manager.find_hit(request, 200), request.junction) for _ in range(2)]
    assert answers == [(64, 128), (64, 128)]


def test_asking_for_fewer_tokens_does_not_bound_what_is_found_for_more():
    manager = manager_of(full(), sliding(64))
    serve(manager, range(320))
    request = request_of(manager, range(320))
    assert [manager.find_hit(request, num_tokens) for num_tokens in (306, 320, 17, 320)] == [304, 304, 0, 304]
