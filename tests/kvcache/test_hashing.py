"""Prefix keys: equal exactly where all tokens so far are equal."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.hashing import PrefixKeys, hash_tokens, keys_of_prefix_ids


def num_equal(keys, others):
    """How many keys agree from the first on."""
    return next(
        (place for place, (key, other) in enumerate(zip(keys, others, strict=False)) if key != other),
        min(len(keys), len(others)),
    )


# ---------------------------------------------------------------------------------------- token by token


def test_only_full_units_have_a_key():
    assert [len(hash_tokens(range(tokens), 16)) for tokens in (15, 16, 47, 48)] == [0, 1, 2, 3]


def test_a_key_stands_for_everything_before_it():
    """Two prompts with equal second halves and different first tokens share nothing."""
    assert num_equal(hash_tokens([1, 5, 6, 7], 2), hash_tokens([2, 5, 6, 7], 2)) == 0


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20), st.sampled_from([1, 2, 3]))
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(tokens, others, unit):
    assert num_equal(hash_tokens(tokens, unit), hash_tokens(others, unit)) == num_equal(tokens, others) // unit


def test_keys_are_the_same_in_every_process():
    """Python's own hashes of strings and bytes are not."""
    script = "from kvcache.hashing import hash_tokens; import sys; sys.stdout.write(repr(hash_tokens(range(64), 16)))"
    found = [
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert found == [repr(hash_tokens(range(64), 16))] * 2


def test_keys_of_tokens_are_ids_that_others_may_share():
    """Never negative: those belong to what a request generates."""
    assert min(hash_tokens(range(1_000), 1)) >= 0


# ------------------------------------------------------------------------------------- a trace's prefix ids


@pytest.mark.parametrize(("unit", "num_keys", "num_shared"), [(16, 64, 32), (512, 2, 1), (1024, 1, 0), (48, 21, 10)])
def test_prefix_ids_are_shared_up_to_the_first_that_differs(unit, num_keys, num_shared):
    """Two ids of 512 tokens each. A unit of 48 does not divide 512: the eleventh reaches into the second id."""
    keys, others = keys_of_prefix_ids([7, 8], 512, unit), keys_of_prefix_ids([7, 9], 512, unit)
    assert (len(keys), num_equal(keys, others)) == (num_keys, num_shared)


def test_a_unit_that_an_id_ends_in_is_not_named():
    """Three ids of 16 tokens are one unit of 32 and a half."""
    assert len(keys_of_prefix_ids([1, 2, 3], 16, 32)) == 1


@pytest.mark.parametrize("unit", [16, 48, 512])
def test_no_two_units_of_a_request_have_the_same_key(unit):
    keys = keys_of_prefix_ids(range(100, 200), 512, unit)
    assert len(set(keys)) == 100 * 512 // unit


def test_without_ids_there_are_no_keys():
    assert keys_of_prefix_ids([], 512, 16) == []


@pytest.mark.parametrize("base", [0, 1 << 39, 1 << 55, (1 << 63) - 2])
def test_ids_of_any_size_stay_apart(base):
    """Published traces name blocks by 64-bit hashes too."""
    keys = keys_of_prefix_ids([base, base + 1], 512, 16)
    assert (len(set(keys)), min(keys) >= 0) == (64, True)


# ------------------------------------------------------------------------------------- shared, then its own


def test_a_trace_names_a_beginning_and_the_rest_is_the_requests_own():
    """Two ids of 16 tokens, then own tokens: only the first 32 match."""
    mine, other = (PrefixKeys.of_prefix_ids([7, 8], 16, 16, serial) for serial in (1, 2))
    assert (mine.num_shared, num_equal(mine.first(5), other.first(5))) == (2, 2)


def test_what_a_request_generates_matches_no_other_request():
    mine, others = PrefixKeys([5, 6], serial=1).first(6), PrefixKeys([5, 6], serial=2).first(6)
    assert (num_equal(mine, others), len(set(mine[2:]) & set(others[2:]))) == (2, 0)


def test_a_request_finds_what_it_generated_itself():
    """After a preemption it asks for the same keys again."""
    keys = PrefixKeys([5, 6], serial=3)
    before = list(keys.first(4))
    assert keys.first(10)[:4] == before


def test_own_keys_are_never_ids_and_never_repeat():
    keys = PrefixKeys([], serial=0).first(100)
    assert (len(set(keys)), max(keys)) == (100, -1)
