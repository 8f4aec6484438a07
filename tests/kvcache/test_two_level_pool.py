"""Large pages of one attention type each: who gets which small page when the pool is nearly full."""

import pytest

from kvcache.block_pool import NO_BLOCKS
from kvcache.errors import InvariantError
from kvcache.tally import Tally
from kvcache.two_level_pool import SmallPages, TwoLevelPool


@pytest.fixture
def pages() -> SmallPages:
    """One large page beside the null block's, split into three: blocks 3, 4 and 5."""
    return TwoLevelPool(2, [3]).of_type(0)


def take(pages: SmallPages, num_blocks: int) -> list[int]:
    """As after the pool has promised what is there."""
    pages.num_granted_at_most = 1 if not pages.num_free else 0
    return pages.take(num_blocks, NO_BLOCKS)


def test_blocks_of_a_large_page_go_out_in_order(pages):
    assert take(pages, 3) == [3, 4, 5]


def test_of_what_is_cached_beside_a_held_block_the_last_tokens_go_first(pages):
    """A request gave back the blocks 4 and 5, the end of its prefix first; another still holds 3."""
    blocks = take(pages, 3)
    pages.hash_blocks([10, 20, 30], blocks)
    pages.put_hashed([30, 20], [5, 4], Tally(1))
    assert take(pages, 1) == [5]
    assert pages.block_of == {10: 3, 20: 4}


def test_a_block_that_was_hit_is_passed_over(pages):
    blocks = take(pages, 3)
    tally = Tally(1)
    pages.hash_blocks([10, 20, 30], blocks)
    pages.put_hashed([30, 20], [5, 4], tally)
    pages.touch([5], tally)
    assert take(pages, 1) == [4]


def test_what_nobody_promised_is_no_overdraft_in_silence(pages):
    take(pages, 3)
    with pytest.raises(InvariantError, match="no-overdraft"):
        pages.take(1, NO_BLOCKS)
