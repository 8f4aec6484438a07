"""What has changed in a pool's map since somebody last read it, so that a copy costs only that to keep up."""

__all__ = ["KeyJournal"]

CATCHING_UP = 4
"""What a changed key costs a copy that catches up, against a key of a copy that is made anew."""


class KeyJournal:
    """Which shared keys have begun or ceased to find a block; a pool writes it (`BlockPool.add_journal`).

    Keys of what only one request has (negative ones) are none of it: nobody else can ask for them.

    It ends where a new copy would cost less, and begins again when it is read: so it is never longer than the map,
    however long nobody asks.
    """

    def __init__(self, block_of: dict[int, int]) -> None:
        """Of a pool's map; whoever reads first is to copy all of it."""
        self._block_of = block_of
        self._noted: list[int] = []
        self._is_complete = False

    def note(self, keys: list[int]) -> None:
        """What these keys find may have changed."""
        if self._is_complete:
            self._noted += [key for key in keys if key >= 0]
            if len(self._noted) * CATCHING_UP > len(self._block_of):
                self._is_complete = False
                self._noted = []

    def bring_up_to_date(self, copy: dict[int, int]) -> None:
        """Make an earlier copy of the map's shared keys equal to them, and begin anew."""
        block_of = self._block_of
        if self._is_complete:
            for key in self._noted:
                block = block_of.get(key)
                if block is not None:
                    copy[key] = block
                else:
                    copy.pop(key, None)
        else:
            copy.clear()
            copy.update([(key, block) for key, block in block_of.items() if key >= 0])
        self._noted = []
        self._is_complete = True
