"""Full attention: everything stays, a hit ends at the first miss."""

from kvcache.hashing import PrefixKeys, hash_tokens
from tests.kvcache.pools import full, hit_of, manager_of, request_of, serve, sliding


def test_nothing_is_given_back_before_the_request_ends():
    manager = manager_of(full())
    request = request_of(manager, range(100), prompt_tokens=64)
    manager.admit(request, 0, 64)
    held = []
    for computed in range(64, 100):
        assert manager.extend(request, computed, computed + 1)
        held.append(len(request.tables[0].ids))
    assert held == [5] * 16 + [6] * 16 + [7] * 4


def test_a_prompt_shares_the_blocks_of_the_beginning_that_it_has_in_common():
    manager = manager_of(full())
    serve(manager, range(320))
    assert hit_of(manager, [*range(100), *range(1000, 1220)]) == 96


def test_a_block_that_is_not_full_is_not_shared():
    manager = manager_of(full())
    serve(manager, range(47))
    assert hit_of(manager, range(1000)) == 32


def test_a_running_request_already_shares_what_it_has_planned():
    manager = manager_of(full())
    manager.admit(request_of(manager, range(320)), 0, 64)
    assert hit_of(manager, range(320)) == 64


def test_beside_another_type_hits_are_multiples_of_both_blocks():
    """Blocks of 32 and of 16, 336 tokens cached, 304 of them shared: 288 can be reused."""
    manager = manager_of(full(), sliding(64, num_kv_heads=2), prefix_cache_retention_interval=None)
    serve(manager, range(336))
    shared = [*range(304), *range(1000, 1100)]
    assert (manager.scheduler_block, hit_of(manager, shared)) == (32, 288)


def test_the_slots_of_the_last_block_wait_for_tokens():
    """100 tokens in seven blocks of 16."""
    manager = manager_of(full())
    request = request_of(manager, range(112), prompt_tokens=100)
    empty = [manager.managers[0].num_empty_slots(request.tables[0], 0)]
    manager.admit(request, 0, 100)
    empty.append(manager.managers[0].num_empty_slots(request.tables[0], 100))
    assert empty == [0, 12]


def test_what_a_request_generates_is_cached_when_it_ends():
    """Nobody else could hit it before: after a prompt of 40 common tokens the request goes its own way."""
    manager = manager_of(full())
    request = manager.new_request(PrefixKeys(hash_tokens(range(40), 16), serial=1), 40)
    manager.admit(request, 0, 40)
    manager.extend(request, 40, 100)
    manager.cache(request, 100)
    cached = [len(manager.pool.block_of)]
    manager.free(request, 100)
    cached.append(len(manager.pool.block_of))
    assert cached == [2, 6]
