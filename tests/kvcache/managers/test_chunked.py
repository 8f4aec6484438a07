"""Chunked local attention: only the current chunk is needed, and its edge is always a place to resume."""

import pytest

from tests.kvcache.pools import chunked, full, hit_of, manager_of, request_of, serve


@pytest.mark.parametrize(("computed", "first_held", "held"), [(63, 0, 4), (64, 4, 1), (100, 4, 3), (128, 8, 1)])
def test_a_chunk_goes_back_when_the_next_one_begins(computed, first_held, held):
    """Chunks of 64 tokens, blocks of 16."""
    manager = manager_of(chunked(64))
    request = request_of(manager, range(200))
    manager.admit(request, 0, computed)
    manager.extend(request, computed, computed + 1)
    (table,) = request.tables
    assert (table.first_held, len(table.ids)) == (first_held, held)


@pytest.mark.parametrize(("common", "hit"), [(20_000, 19_984), (17_000, 16_992), (10_000, 10_000)])
def test_llama_4_hits_beside_full_attention(common, hit):
    """Chunks of 8192 tokens, of which 20,000 are cached: identical, or parting within the third or second chunk."""
    manager = manager_of(chunked(8192), full(), num_blocks=4_000)
    serve(manager, range(20_000))
    assert hit_of(manager, [*range(common), *range(30_000, 50_000 - common)]) == hit


def test_chunks_before_the_current_one_count_as_computed():
    """Without full attention nothing of the first chunk need be cached, or ever have been."""
    manager = manager_of(chunked(64))
    assert hit_of(manager, range(100)) == 64


def test_a_hit_at_a_chunks_edge_holds_no_block():
    manager = manager_of(chunked(64))
    request = request_of(manager, range(100))
    manager.admit(request, 64, 80)
    (table,) = request.tables
    assert (table.first_held, len(table.ids)) == (4, 1)


def test_all_blocks_of_a_chunk_are_shared():
    manager = manager_of(chunked(64), full())
    serve(manager, range(128))
    assert hit_of(manager, [*range(120), *range(1000, 1100)]) == 112
