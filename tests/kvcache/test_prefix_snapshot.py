"""A snapshot of a prefix cache: what it says between two refreshes, and what a refresh costs."""

from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from kvcache.key_journal import KeyJournal
from kvcache.pool_kinds import DOCUMENT
from kvcache.prefix_snapshot import PrefixSnapshot
from tests.kvcache.machine import PoolMachine
from tests.kvcache.pools import full, manager_of, request_of, serve
from tests.kvcache.test_state_machine import CONFIGURATIONS

NAMES = ("full-tight", "many-groups-every-16", "chunked-full", "mamba-align-dense-tight", "two-windows-dense-tight")
PROGRAMS = settings(max_examples=15, stateful_step_count=60, derandomize=True, database=None, deadline=None)
UNTIL_A_BUG = settings(PROGRAMS, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)


class SnapshotMachine(PoolMachine):
    """Refreshes a snapshot now and then, and notes what the manager itself says at that time."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot_of_it = PrefixSnapshot(self.manager)
        self.said: list[tuple[list[int], int]] = []
        """Tokens and their hit when the snapshot was last refreshed."""

    def hit_by(self, cache, tokens: list[int]) -> int:
        return cache.peek_hit(request_of(self.manager, tokens).keys, len(tokens))

    @rule()
    def refresh(self) -> None:
        self.snapshot_of_it.refresh()
        self.said = [(tokens, self.hit_by(self.manager, tokens)) for tokens in self.past if tokens]

    @precondition(lambda self: self.said)
    @rule(number=st.integers(0, 20), length=st.integers(1, 95))
    def refresh_and_ask_for_less(self, number: int, length: int) -> None:
        """Whoever asks for a beginning hears of no more than that, too."""
        tokens = self.said[number % len(self.said)][0][:length]
        self.refresh()
        assert self.hit_by(self.snapshot_of_it, tokens) == self.hit_by(self.manager, tokens)

    @invariant()
    def it_says_what_the_manager_said(self) -> None:
        assert [hit for _, hit in self.said] == [self.hit_by(self.snapshot_of_it, tokens) for tokens, _ in self.said]


def machine_of(name: str, pool_kind=None) -> type[SnapshotMachine]:
    configuration = CONFIGURATIONS[name]
    if pool_kind is not None:
        configuration = replace(configuration, pool_kind=pool_kind)
    machine = type("Machine", (SnapshotMachine,), {"configuration": configuration, "num_calls": 0})
    return seed(crc32(name.encode()))(machine)


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_says_what_the_manager_said_when_it_was_taken(name):
    """Whatever was hashed and evicted since, and whether the journal was long enough or not."""
    run_state_machine_as_test(machine_of(name), settings=PROGRAMS)


def test_so_it_does_in_the_document_s_pool():
    run_state_machine_as_test(machine_of("full-sliding-dense", DOCUMENT), settings=PROGRAMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_that_tells_nobody_is_found_out(name):
    class Untold(machine_of(name)):
        def __init__(self) -> None:
            super().__init__()
            self.manager.pool._journals.clear()

    with pytest.raises((AssertionError, LookupError)):
        run_state_machine_as_test(seed(crc32(name.encode()))(Untold), settings=UNTIL_A_BUG)


MARK = 10**9


def is_made_anew(*notes: list[int]) -> bool:
    """Whether a copy of 100 keys is made anew after these notes: then a mark that was put into it is gone."""
    held = dict.fromkeys(range(100), 1)
    journal = KeyJournal(held)
    copy: dict[int, int] = {}
    journal.bring_up_to_date(copy)
    copy[MARK] = 1
    for keys in notes:
        journal.note(keys)
    journal.bring_up_to_date(copy)
    is_new = MARK not in copy
    copy.pop(MARK, None)
    assert copy == held
    return is_new


def test_a_copy_catches_up_with_what_has_changed():
    assert not is_made_anew([3, 4], [200])


def test_where_much_has_changed_it_is_made_anew():
    """More than a quarter: from there on nothing is noted, so that the journal stays short however long nobody asks."""
    assert is_made_anew(list(range(20)), list(range(20)))


def test_what_only_one_request_has_is_no_change():
    """Nobody else can ask for it."""
    assert not is_made_anew(list(range(-99, 0)), [5])


def test_what_only_one_request_has_is_not_copied():
    held, copy = {5: 1, -5: 2}, {}
    KeyJournal(held).bring_up_to_date(copy)
    assert copy == {5: 1}


def test_nothing_is_known_before_the_first_refresh():
    manager = manager_of(full())
    snapshot = PrefixSnapshot(manager)
    serve(manager, range(64))
    known = [snapshot.peek_hit(request_of(manager, range(64)).keys, 64)]
    snapshot.refresh()
    assert [*known, snapshot.peek_hit(request_of(manager, range(64)).keys, 64)] == [0, 48]


def test_two_snapshots_of_one_manager_are_each_as_old_as_they_are():
    manager = manager_of(full())
    old, new = PrefixSnapshot(manager), PrefixSnapshot(manager)
    keys = request_of(manager, range(64)).keys
    old.refresh()
    serve(manager, range(64))
    new.refresh()
    assert (old.peek_hit(keys, 64), new.peek_hit(keys, 64)) == (0, 48)
