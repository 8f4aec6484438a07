"""The verbs that a scheduler needs."""

import pytest

from kvcache.errors import InvariantError, KVCacheError
from kvcache.hashing import PrefixKeys, hash_tokens
from tests.kvcache.pools import chunked, full, hit_of, mamba, manager_of, request_of, serve, sliding


def state_of(manager, *requests):
    """All that a refused call must leave alone."""
    tables = [[(table.first_held, list(table.ids)) for table in request.tables] for request in requests]
    return manager.pool.num_free, dict(manager.pool.block_of), tables


# ----------------------------------------------------------------------------------------------- find_hit


@pytest.mark.parametrize(("num_tokens", "hit"), [(320, 304), (321, 320), (330, 320), (16, 0), (17, 16)])
def test_the_last_token_is_always_computed(num_tokens, hit):
    """Something must be sampled from, and hits are whole blocks."""
    manager = manager_of(full())
    serve(manager, range(num_tokens))
    assert hit_of(manager, range(num_tokens)) == hit


def test_looking_for_a_hit_changes_no_block():
    manager = manager_of(full(), sliding(64))
    serve(manager, range(320))
    request = request_of(manager, range(320))
    before = state_of(manager, request)
    manager.find_hit(request, 320)
    assert state_of(manager, request) == before


# -------------------------------------------------------------------------------------------------- admit


def test_a_hit_is_shared_and_only_the_rest_is_taken():
    manager = manager_of(full(), num_blocks=100)
    first, second = request_of(manager, range(320)), request_of(manager, range(320))
    manager.admit(first, 0, 320)
    manager.admit(second, manager.find_hit(second, 320), 320)
    assert (first.tables[0].ids[:19], manager.pool.num_free) == (second.tables[0].ids[:19], 99 - 21)


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(21, True), (20, False)])
def test_a_request_is_admitted_if_its_blocks_are_free(num_blocks, is_admitted):
    """20 blocks, beside the null block."""
    manager = manager_of(full(), num_blocks=num_blocks)
    assert manager.admit(request_of(manager, range(320)), 0, 320) is is_admitted


def test_the_blocks_of_a_free_hit_are_not_counted_as_room():
    """Nine blocks, of which the hit's four are among the free: six are wanted beside them, five are there."""
    manager = manager_of(full(), num_blocks=10)
    serve(manager, range(65))
    request = request_of(manager, range(160))
    hit = manager.find_hit(request, 160)
    before = state_of(manager, request)
    assert (hit, manager.admit(request, hit, 160), state_of(manager, request)) == (64, False, before)


@pytest.mark.parametrize(("reserve", "is_admitted"), [(0, True), (144, True), (145, False)])
def test_a_reservation_asks_for_the_whole_request_though_only_a_chunk_is_taken(reserve, is_admitted):
    manager = manager_of(full(), num_blocks=10)
    assert manager.admit(request_of(manager, range(200)), 0, 32, reserve_tokens=reserve) is is_admitted
    assert manager.pool.num_free == (7 if is_admitted else 9)


def test_a_window_reserves_no_more_than_it_can_ever_hold():
    """4,096 tokens may be in flight, so a window of 64 needs 4,159 at most, and a block more."""
    manager = manager_of(sliding(64), num_blocks=262)
    assert manager.admit(request_of(manager, range(100_000)), 0, 32, reserve_tokens=100_000)


def test_a_watermark_is_left_free_unless_the_request_is_alone():
    """A tenth of 20 blocks: 18 of the 19 usable ones are too many while others run."""
    manager = manager_of(full(), num_blocks=20, watermark=0.1)
    answers = [
        manager.admit(request_of(manager, range(288)), 0, 288, alone=False),
        manager.admit(request_of(manager, range(288)), 0, 288, alone=True),
    ]
    assert answers == [False, True]


def test_a_refused_request_leaves_everything_as_it_was():
    manager = manager_of(full(), sliding(64), num_blocks=50)
    serve(manager, range(160))
    request = request_of(manager, range(800))
    before = state_of(manager, request)
    assert not manager.admit(request, manager.find_hit(request, 800), 800)
    assert state_of(manager, request) == before


# ------------------------------------------------------------------------------------------------- extend


def test_a_request_that_cannot_grow_keeps_what_it_needs():
    """What has left the window goes back even so: blocks 0 to 3 after 128 tokens."""
    manager = manager_of(sliding(64), num_blocks=10)
    request = request_of(manager, range(400))
    manager.admit(request, 0, 128)
    assert not manager.extend(request, 128, 400)
    assert (request.tables[0].first_held, len(request.tables[0].ids), manager.pool.num_free) == (4, 4, 5)


def test_what_left_the_window_makes_room_for_the_next_tokens():
    """A pool of nine blocks carries a request of 25."""
    manager = manager_of(sliding(64), num_blocks=10)
    request = request_of(manager, range(400))
    manager.admit(request, 0, 64)
    assert all(manager.extend(request, computed, computed + 16) for computed in range(64, 400, 16))


def test_blocks_that_are_taken_at_the_end_of_a_run_are_those_that_each_step_would_take():
    """Two decodes over 40 steps, with blocks of earlier requests to be evicted on the way."""
    tables = []
    for at_once in (False, True):
        manager = manager_of(full(), num_blocks=14)
        serve(manager, range(1_000, 1_128))
        requests = [manager.new_request(PrefixKeys([], serial), prompt) for serial, prompt in enumerate((40, 45))]
        for request in requests:
            manager.admit(request, 0, request.prompt_tokens)
        growing = []
        for step in range(1, 41):
            for request in requests:
                growing += manager.reserve(request, request.prompt_tokens + step)
                if not at_once:
                    manager.take_for(growing)
                    growing.clear()
        manager.take_for(growing)
        tables.append([request.tables[0].ids for request in requests])
    assert tables[0] == tables[1]


def test_a_decode_only_grows_until_it_has_something_to_cache():
    """Its third block is one that others may hit as soon as token 48 fills it."""
    manager = manager_of(full())
    request = manager.new_request(PrefixKeys(hash_tokens(range(48), 16), serial=1), 40)
    manager.admit(request, 0, 40)
    grows = [num_tokens for num_tokens in range(41, 60) if manager.only_grows(request, num_tokens)]
    assert grows == list(range(41, 48))


def test_a_decode_with_a_window_never_only_grows():
    manager = manager_of(full(), sliding(64))
    request = request_of(manager, range(40))
    manager.admit(request, 0, 40)
    assert not manager.only_grows(request, 41)


@pytest.mark.parametrize(("num_requests", "num_steps", "has_room"), [(2, 16, True), (1, 32, True), (2, 17, False)])
def test_room_for_decodes_is_a_block_for_each_boundary_that_may_be_crossed(num_requests, num_steps, has_room):
    """Four free blocks, two groups: in 16 steps a request crosses one boundary, in 17 perhaps two."""
    manager = manager_of(full(), sliding(64), num_blocks=5)
    assert manager.has_room_for_decodes(num_requests, num_steps) is has_room


# --------------------------------------------------------------------------------------------------- free


def test_a_preempted_request_finds_its_own_blocks_again():
    """Its generated tokens too: they are its own, and it asks for the same keys."""
    manager = manager_of(full())
    request = manager.new_request(PrefixKeys([], serial=1), 100)
    manager.admit(request, 0, 100)
    manager.extend(request, 100, 150)
    manager.cache(request, 150)
    manager.free(request, 150)
    assert manager.find_hit(request, 151) == 144


def test_a_freed_request_holds_nothing():
    manager = manager_of(full(), sliding(64), num_blocks=100)
    request = request_of(manager, range(320))
    manager.admit(request, 0, 320)
    manager.free(request, 320)
    assert (manager.pool.num_free, [table.ids for table in request.tables]) == (99, [[], []])


# -------------------------------------------------------------------------------------------- next_event


@pytest.mark.parametrize(
    ("spec", "computed", "event"),
    [
        pytest.param(full(), 100, 111, id="token 111 fills a block"),
        pytest.param(full(), 112, 112, id="token 112 needs a block"),
        pytest.param(sliding(20), 113, 115, id="the window of token 115 leaves block 5"),
        pytest.param(chunked(64), 120, 127, id="token 127 fills a block"),
    ],
)
def test_the_next_step_in_which_a_decode_changes_its_tables(spec, computed, event):
    manager = manager_of(spec)
    request = request_of(manager, range(200), prompt_tokens=90)
    manager.admit(request, 0, 90)
    for done in range(90, computed):
        manager.extend(request, done, done + 1)
        manager.cache(request, done + 1)
    assert manager.next_event(request) == event


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([chunked(64, num_kv_heads=2), full()], "chunked local attention needs the same block size in all groups"),
        ([mamba(64, "none", page_tokens=16), full()], "blocks of 16 tokens do not fit beside a hash unit of 64"),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused(specs, message):
    with pytest.raises(KVCacheError, match=message):
        manager_of(*specs)


# ----------------------------------------------------------------------------------- the check has teeth


def test_a_block_that_no_living_request_names_is_a_leak():
    manager = manager_of(full())
    request = request_of(manager, range(320))
    manager.admit(request, 0, 320)
    manager.check_integrity([request])
    with pytest.raises(InvariantError, match="conservation: a block is lost"):
        manager.check_integrity([])
