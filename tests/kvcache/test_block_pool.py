"""Which blocks are free, in what order they are reused, and which hash finds which block."""

import pytest

from kvcache.block_pool import NULL_BLOCK, BlockPool
from kvcache.errors import InvariantError
from kvcache.tally import Tally


@pytest.fixture
def pool():
    """Nine usable blocks."""
    return BlockPool(num_blocks=10)


def cached(pool, *blocks, first_key=100):
    """Hash blocks in use under the keys 100, 101, ... and give them back in this order."""
    keys = list(range(first_key, first_key + len(blocks)))
    pool.hash_blocks(keys, list(blocks))
    pool.put_hashed(keys, list(blocks), Tally(1))


# ------------------------------------------------------------------------------------------ order of reuse


def test_a_fresh_pool_gives_every_block_but_the_null_block(pool):
    taken = pool.take(9)
    assert (taken, pool.num_free, NULL_BLOCK) == ([1, 2, 3, 4, 5, 6, 7, 8, 9], 0, 0)


def test_unhashed_blocks_are_reused_first_and_the_last_freed_before_the_others(pool):
    pool.take(9)
    cached(pool, 1, 2)
    pool.put_unhashed([3, 4])
    pool.put_unhashed([5])
    assert pool.take(5) == [5, 4, 3, 1, 2]


def test_the_end_of_a_request_is_evicted_before_its_beginning(pool):
    """Blocks 1 to 5, the last one not full, freed from the end: what was free before comes between 5 and 4."""
    pool.take(5)
    pool.hash_blocks([101, 102, 103, 104], [1, 2, 3, 4])
    pool.put_unhashed([5])
    pool.put_hashed([104, 103, 102, 101], [4, 3, 2, 1], Tally(1))
    assert pool.take(9) == [5, 6, 7, 8, 9, 4, 3, 2, 1]


def test_a_block_that_was_hit_queues_up_anew_when_it_is_freed(pool):
    pool.take(9)
    cached(pool, 1, 2, 3)
    pool.touch([1], Tally(1))
    pool.put_hashed([100], [1], Tally(1))
    assert pool.take(3) == [2, 3, 1]


def test_a_block_that_was_hit_often_is_still_free_only_once(pool):
    """Its earlier places in the queue are stale."""
    pool.take(9)
    cached(pool, 1, 2)
    for _ in range(5):
        pool.touch([1, 2], Tally(1))
        pool.put_hashed([101, 100], [2, 1], Tally(1))
    assert (pool.num_free, pool.take(2)) == (2, [2, 1])


def test_a_run_that_was_hit_in_the_middle_is_reused_around_the_hit(pool):
    """Of five blocks freed together the third is held again."""
    pool.take(9)
    cached(pool, 1, 2, 3, 4, 5)
    pool.touch([3], Tally(1))
    assert (pool.take(3), pool.take(1), pool.block_of) == ([1, 2, 4], [5], {102: 3})


def test_taking_more_than_is_free_is_a_bug_of_the_caller(pool):
    pool.take(9)
    with pytest.raises(InvariantError, match="no-overdraft: 1 blocks asked of a queue of 0"):
        pool.take(1)


# ------------------------------------------------------------------------------------------------ holders


def test_a_shared_block_is_free_when_its_last_holder_gives_it_back(pool):
    pool.take(1)
    cached(pool, 1)
    pool.touch([1], Tally(1))
    pool.touch([1], Tally(1))
    free = [pool.num_free]
    for _ in range(2):
        pool.put_hashed([100], [1], Tally(1))
        free.append(pool.num_free)
    assert free == [8, 8, 9]


def test_free_blocks_among_a_hit_are_those_that_nobody_holds(pool):
    pool.take(3)
    cached(pool, 1, 2, 3)
    pool.touch([2], Tally(1))
    assert (pool.num_free_among([1, 2, 3]), pool.num_cached_free) == (2, 2)


def test_cached_blocks_that_nobody_holds_count_as_unused(pool):
    """A warm cache is no usage."""
    pool.take(3)
    in_use = pool.usage
    cached(pool, 1, 2, 3)
    assert (in_use, pool.usage) == (pytest.approx(3 / 9), 0.0)


def test_a_pool_of_the_null_block_alone_is_never_in_use():
    assert BlockPool(num_blocks=1).usage == 0.0


def test_a_pool_without_the_null_block_is_refused():
    with pytest.raises(ValueError, match="a pool needs at least the null block, got 0 blocks"):
        BlockPool(num_blocks=0)


# ------------------------------------------------------------------------------------------------- hashes


def test_an_evicted_block_is_no_longer_found(pool):
    pool.take(9)
    cached(pool, 1, 2)
    pool.take(1)
    assert (pool.block_of, pool.num_evictions) == ({101: 2}, 1)


def test_the_first_of_two_equal_blocks_is_found_until_it_is_evicted(pool):
    pool.take(9)
    cached(pool, 4)
    cached(pool, 7)
    found = [pool.block_of[100]]
    pool.take(1)
    found.append(pool.block_of[100])
    pool.take(1)
    assert (found, pool.block_of) == ([4, 7], {})


def test_of_three_equal_blocks_each_is_found_in_turn(pool):
    pool.take(9)
    for block in (1, 2, 3):
        pool.hash_blocks([100], [block])
    pool.put_hashed([100, 100, 100], [2, 1, 3], Tally(1))
    found = []
    for _ in range(3):
        found.append(pool.block_of[100])
        pool.take(1)
    assert found == [1, 1, 3]


# ---------------------------------------------------------------------------- the invariants have teeth


def loses_a_free_block(pool):
    pool._unhashed.pop()


def frees_a_held_block(pool):
    pool.put_unhashed([3])


def frees_a_block_twice(pool):
    pool._unhashed.append(pool._unhashed[0])


def miscounts_the_queue(pool):
    pool._num_queued += 1


def takes_a_block_out_of_the_queue(pool):
    pool._run_of[1] = None


def forgets_a_holder(pool):
    pool._more_holders.clear()


def lets_two_hold_a_block_without_a_key(pool):
    pool._more_holders[3] = 1


def hashes_the_null_block(pool):
    pool.hash_blocks([200], [NULL_BLOCK])


def hashes_a_free_block(pool):
    pool.hash_blocks([200], [9])


def loses_a_key(pool):
    del pool.block_of[100]


def mixes_up_two_keys(pool):
    pool.block_of[100], pool.block_of[101] = pool.block_of[101], pool.block_of[100]


def finds_the_second_copy_first(pool):
    pool.hash_blocks([101], [3])
    pool.block_of[101] = 3


PLACES = [(101, 2), (101, 2), (None, 3)]


@pytest.mark.parametrize(
    ("sabotage", "places", "invariant"),
    [
        (loses_a_free_block, PLACES, "conservation"),
        (frees_a_held_block, PLACES, "conservation"),
        (frees_a_block_twice, PLACES, "conservation"),
        (miscounts_the_queue, PLACES, "conservation"),
        (takes_a_block_out_of_the_queue, PLACES, "conservation"),
        (forgets_a_holder, PLACES, "reference-counts"),
        (lets_two_hold_a_block_without_a_key, [*PLACES, (None, 3)], "reference-counts"),
        (hashes_the_null_block, PLACES, "live-hashes"),
        (hashes_a_free_block, PLACES, "live-hashes"),
        (loses_a_key, PLACES, "live-hashes"),
        (mixes_up_two_keys, PLACES, "live-hashes"),
        (finds_the_second_copy_first, [*PLACES[:2], (101, 3)], "live-hashes"),
    ],
)
def test_a_pool_that_contradicts_itself_is_found_out(sabotage, places, invariant):
    """Block 1 is cached and free, block 2 cached and held twice, block 3 held."""
    pool = BlockPool(num_blocks=10)
    pool.take(3)
    cached(pool, 1, 2)
    pool.touch([2], Tally(1))
    pool.touch([2], Tally(1))
    pool.check_integrity([PLACES])
    sabotage(pool)
    with pytest.raises(InvariantError, match=invariant):
        pool.check_integrity([places])
