"""Sliding window: the last `window` tokens stay needed, and any cached window is a place to resume."""

from collections.abc import Collection, Iterable

from kvcache.block_pool import BlockPool
from kvcache.managers.base import NEVER, BlockTable, SingleTypeManager
from kvcache.managers.cache_policy import CachePolicy
from kvcache.specs import SlidingWindowSpec, cdiv

__all__ = ["SlidingWindowManager"]


class SlidingWindowManager(SingleTypeManager):
    """Attention to the last `window` tokens."""

    gives_blocks_back = True

    def __init__(
        self, spec: SlidingWindowSpec, groups: range, pool: BlockPool, policy: CachePolicy, max_blocks: int
    ) -> None:
        super().__init__(spec, groups, pool, policy, max_blocks)
        self.window = spec.window
        # The next query sees itself and the window - 1 tokens before it.
        self.blocks_for_hit = cdiv(spec.window - 1, spec.block_size)

    def first_needed_token(self, num_computed: int) -> int:
        """The first token of the next query's window."""
        return max(0, num_computed - self.window + 1)

    def computed_when_unneeded(self, position: int) -> int:
        """When the window has moved past the block's last token."""
        return (position + 1) * self.block_size + self.window - 1

    def find_hit(self, keys: list[int], max_tokens: int) -> int:
        """The last cached window, or a run of cached blocks from the start, whichever ends last.

        Both end on the alignment. Searched from the right; a missing block rules out every window
        that contains it, so each window is probed from its left edge and a miss skips as far as possible.
        """
        need, step = max(1, self.blocks_for_hit), self.policy.alignment // self.block_size
        end = max_tokens // self.policy.alignment * step
        while end > 0:
            start = max(0, end - need)
            missing = self._missing_before(keys, start, end)
            if missing is None:
                return end * self.block_size
            end = missing // step * step
        return 0

    def _missing_before(self, keys: list[int], start: int, end: int) -> int | None:
        """A position without a block, such that no window that ends after it is cached whole."""
        units = self.units_per_block
        if not self.is_cached(keys[(start + 1) * units - 1]):
            return start  # the likeliest miss, and it skips furthest
        for position in range(end - 1, start, -1):
            if not self.is_cached(keys[(position + 1) * units - 1]):
                return position
        return None

    def next_to_cache(self, table: BlockTable, junction: int) -> int:
        """The next full block; none behind the prompt unless windows are kept at intervals."""
        if self.policy.retention_interval == 0 and table.num_cached * self.block_size >= max(
            table.prompt_tokens, junction
        ):
            return NEVER
        return super().next_to_cache(table, junction)

    def retained(self, start: int, end: int, boundaries: Collection[int]) -> Iterable[tuple[int, int]]:
        """The window before each boundary, and before each multiple of the retention interval."""
        alignment, interval, need = self.policy.alignment, self.policy.retention_interval, self.blocks_for_hit
        if interval == 0 and start * self.block_size >= max(boundaries):
            return
        segment = (alignment if interval is None else interval) // self.block_size
        if interval != 0 and need >= segment:
            yield start, end
            return
        edges = set() if interval is None else {edge // alignment * alignment // self.block_size for edge in boundaries}
        if segment:
            edges.update(range((start // segment + 1) * segment, end + need, segment))
        for edge in sorted(edges):
            first, last = max(start, edge - need), min(end, edge)
            if first < last:
                yield first, last
                start = last
