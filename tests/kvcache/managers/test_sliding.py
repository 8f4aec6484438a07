"""Sliding windows: what is behind the window goes back, and any cached window is a place to resume."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kvcache.pools import full, hash_positions, hit_of, manager_of, request_of, serve, sliding


def test_what_the_next_query_reads_stays():
    """A window of 64 after 200 tokens begins at token 137: blocks 0 to 7 go back, block 8 stays."""
    manager = manager_of(sliding(64))
    request = request_of(manager, range(201))
    manager.admit(request, 0, 200)
    manager.extend(request, 200, 201)
    (table,) = request.tables
    assert (table.first_held, len(table.ids)) == (8, 5)


def test_in_steady_decoding_a_window_holds_one_block_more_than_it_fills():
    """gpt-oss: 128 tokens are 8 blocks, at most 9 are held at a time."""
    manager = manager_of(sliding(128))
    request = request_of(manager, range(1000), prompt_tokens=500)
    manager.admit(request, 0, 500)
    held = []
    for computed in range(500, 1000):
        manager.extend(request, computed, computed + 1)
        held.append(len(request.tables[0].ids))
    assert (min(held), max(held)) == (8, 9)


def test_tokens_in_flight_keep_their_window():
    """Of 200 planned tokens 100 are settled: the query of token 100 still reads from token 37 on."""
    manager = manager_of(sliding(64))
    request = request_of(manager, range(216))
    manager.admit(request, 0, 200)
    manager.extend(request, 100, 216)
    assert request.tables[0].first_held == 37 // 16


def test_a_window_of_one_token_holds_one_block():
    manager = manager_of(sliding(1))
    request = request_of(manager, range(100))
    manager.admit(request, 0, 40)
    manager.extend(request, 40, 41)
    assert len(request.tables[0].ids) == 1


@pytest.mark.parametrize(("window", "blocks"), [(64, 4), (65, 4), (66, 5), (49, 3), (50, 4), (2, 1)])
def test_a_hit_holds_the_blocks_of_the_window_minus_the_next_token(window, blocks):
    manager = manager_of(sliding(window))
    serve(manager, range(320))
    request = request_of(manager, range(320))
    manager.admit(request, manager.find_hit(request, 320), 320)
    assert len(request.tables[0].ids) == blocks + 1


def test_a_beginning_shorter_than_the_window_is_a_hit_too():
    """Three blocks from the start are all that a query after 48 tokens reads."""
    manager = manager_of(sliding(128))
    serve(manager, range(49))
    assert hit_of(manager, range(500)) == 48


def test_windows_that_are_given_back_together_are_reused_from_the_last_to_the_first():
    """Of 20 blocks 4 to 7 and 12 to 18 are cached; the others go before them."""
    manager = manager_of(sliding(64), num_blocks=21, prefix_cache_retention_interval=128)
    request = request_of(manager, range(320))
    manager.admit(request, 0, 320)
    ids = list(request.tables[0].ids)
    manager.free(request, 320)
    reused = [ids.index(block) for block in manager.pool.take(20)]
    assert reused[-11:] == [*range(18, 11, -1), *range(7, 3, -1)]


def test_groups_give_back_their_blocks_one_group_after_the_other():
    """Two sliding groups, in which the same four blocks are cached."""
    manager = manager_of(sliding(64), sliding(64), full(), num_blocks=61)
    request = request_of(manager, range(320))
    manager.admit(request, 0, 320)
    ids = list(request.tables[0].ids)
    manager.free(request, 320)
    cached = [divmod(ids.index(block), 2) for block in manager.pool.take(60) if block in ids][-8:]
    assert cached == [(position, group) for group in (0, 1) for position in (18, 17, 16, 15)]


@given(cached=st.sets(st.integers(0, 11), min_size=1), window=st.integers(2, 80))
def test_the_longest_hit_ends_behind_a_window_without_a_gap(cached, window):
    """Of 12 blocks any may be cached; the plain way is to try every end."""
    manager = manager_of(sliding(window))
    request = request_of(manager, range(200))
    hash_positions(manager, request, cached)
    first_read = [max(0, 16 * end - window + 1) // 16 for end in range(13)]
    ends = [end for end in range(13) if cached.issuperset(range(first_read[end], end))]
    assert manager.find_hit(request, 200) == 16 * max(ends)
