"""A request on its way to a replica: only there it becomes a `Request`, for its keys depend on the replica's blocks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvcache.hashing import PrefixKeys
from kvcache.manager import KVCacheManager
from simulator.request import Request
from workloads import TraceRequest

__all__ = ["Arrival"]


class Arrival:
    """A row of a trace that has arrived; `serial` is its number, from 0.

    `on_left` is called when it leaves for good, whatever became of it: who waits for that goes on.

    Its keys are worked out once for all replicas that number them alike: those whom a router asks, and the one
    that it chooses.
    """

    __slots__ = ("_id_tokens", "_keys", "num_retries", "on_left", "row", "serial")

    def __init__(
        self,
        row: TraceRequest,
        prefix_block_tokens: int | None,
        serial: int,
        on_left: Callable[[], None] = lambda: None,
    ) -> None:
        self.row = row
        self.serial = serial
        self.num_retries = 0
        """How often it was sent elsewhere because the replica where it was had failed."""
        self.on_left = on_left
        self._id_tokens = prefix_block_tokens or 1
        self._keys: dict[tuple[int, int], PrefixKeys] = {}

    def changed(self, **fields: Any) -> "Arrival":
        """The same request as one sees it who gets only a part of it, or gets it later; `fields` are its row's."""
        other = Arrival(replace(self.row, **fields), self._id_tokens, self.serial)
        other._keys = self._keys  # they do not depend on lengths
        return other

    @property
    def shared_tokens(self) -> int:
        """Tokens of the prompt that other requests may have, too: no replica holds more of it."""
        return min(len(self.row.prefix_ids) * self._id_tokens, self.row.prompt_tokens)

    def keys_for(self, manager: KVCacheManager) -> PrefixKeys:
        """The request's prefix keys, as this manager counts them."""
        kind = manager.hash_unit, manager.key_stride
        keys = self._keys.get(kind)
        if keys is None:
            keys = PrefixKeys.of_prefix_ids(self.row.prefix_ids, self._id_tokens, manager.hash_unit, self.serial)
            keys.stride = manager.key_stride
            self._keys[kind] = keys
        return keys

    def request_for(self, manager: KVCacheManager) -> Request:
        """The request, as the scheduler of this manager's replica knows it."""
        row = self.row
        return Request(
            row.request_id,
            row.arrival_s,
            manager.new_request(self.keys_for(manager), row.prompt_tokens),
            output_tokens=row.output_tokens,
            priority=row.priority,
            session=row.session,
        )
