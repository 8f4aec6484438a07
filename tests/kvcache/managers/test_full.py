"""Full attention: everything stays, a hit ends at the first miss."""

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
