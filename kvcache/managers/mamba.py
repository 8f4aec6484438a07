"""Mamba: one state stands for all tokens before it, and a prefix can be resumed wherever a state was kept.

In mode "none" a request keeps its running state only. In mode "align" the state that stands at the
end of a block is left behind in its own block, and the next one is written into a fresh block:

```
positions      0      1      2      3            block size 4, 14 tokens computed
             null   null   state  state          position 2: after 12 tokens, position 3: running
```
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from kvcache.block_pool import BlockPool
from kvcache.errors import KVCacheError
from kvcache.managers.base import BlockTable, CachePolicy, SingleTypeManager
from kvcache.specs import MambaSpec, cdiv

__all__ = ["MambaAlignManager", "MambaManager", "mamba_manager"]


class MambaManager(SingleTypeManager):
    """States without a place of their own at block ends: mode "none", and what both modes share."""

    def __init__(self, spec: MambaSpec, groups: range, pool: BlockPool, policy: CachePolicy, max_blocks: int) -> None:
        super().__init__(spec, groups, pool, policy, max_blocks)
        if spec.num_speculative_blocks:
            raise KVCacheError("states for speculative tokens are planned but not scheduled yet")
        self._written_this_step: set[int] = set()

    def first_needed_token(self, num_computed: int) -> int:
        """The last computed token: its state is all that the next query reads."""
        return num_computed - 1

    def computed_when_unneeded(self, position: int) -> int:
        """When a token beyond the block has been computed."""
        return (position + 1) * self.block_size + 1

    def find_hit(self, keys: Sequence[int], max_tokens: int) -> int:
        """The last cached state that ends on the alignment."""
        step = self.policy.alignment // self.block_size
        block_keys = self.block_keys(keys, 0, max_tokens // self.block_size)
        for position in range(len(block_keys) // step * step - 1, -1, -step):
            if self.is_cached(block_keys[position]):
                return (position + 1) * self.block_size
        return 0

    def retained(self, start: int, end: int, boundaries: Collection[int]) -> Iterable[tuple[int, int]]:
        """The state at each boundary, and at each multiple of the retention interval."""
        alignment, interval = self.policy.alignment, self.policy.retention_interval
        segment = interval // self.block_size if interval else 0
        if interval is None or segment == 1:
            yield start, end
            return
        positions = {edge // alignment * alignment // self.block_size - 1 for edge in boundaries}
        if segment:
            positions.update(range((start // segment + 1) * segment - 1, end, segment))
        for position in sorted(positions):
            if start <= position < end:
                yield position, position + 1

    def _hash(self, table: BlockTable, keys: Sequence[int], start: int, stop: int) -> None:
        super()._hash(table, keys, start, stop)
        self._written_this_step.update(self.block_keys(keys, start, stop))

    def may_take_hit(self, keys: Sequence[int], hit_tokens: int) -> bool:
        """A state that this step writes can be copied in the next step at the earliest."""
        if not hit_tokens:
            return True
        return keys[hit_tokens // self.policy.hash_unit - 1] not in self._written_this_step

    def num_empty_slots(self, table: BlockTable, num_computed: int) -> int:
        """None: a state fills its block from the first token on."""
        return 0

    def new_step(self) -> None:
        """States of the step before are there now."""
        self._written_this_step.clear()


class StateTable(BlockTable):
    """A table with a state at a few positions only: `positions[i]` has the i-th block of each group."""

    __slots__ = ("num_positions", "positions")

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[int] = []
        self.num_positions = 0


class MambaAlignManager(MambaManager):
    """States that are kept at block ends."""

    def new_table(self) -> StateTable:
        """An empty table for one request."""
        return StateTable()

    def num_blocks(self, table: BlockTable) -> int:
        """Positions in the table, null blocks included."""
        assert isinstance(table, StateTable)
        return table.num_positions

    def first_hit_position(self, hit_tokens: int) -> int:
        """The one state at the hit's end."""
        return max(0, hit_tokens // self.block_size - 1)

    def num_blocks_at_admission(self, num_tokens: int, hit_tokens: int, capped: bool) -> int:
        """One state per group, if the request goes beyond its hit."""
        required = cdiv(num_tokens, self.block_size) - hit_tokens // self.block_size
        return min(max(required, 0), 1) * self.num_groups

    def num_new_blocks(self, table: BlockTable, num_tokens: int) -> int:
        """One state per group, where a block boundary is crossed."""
        return min(super().num_new_blocks(table, num_tokens), self.num_groups)

    def take_hit(self, table: BlockTable, blocks: list[int], hit_tokens: int) -> None:
        """Start from the cached state at the hit's end."""
        assert isinstance(table, StateTable)
        self.pool.touch(blocks)
        table.num_positions = table.num_cached = hit_tokens // self.block_size
        if blocks:
            table.ids = blocks
            table.positions = [table.num_positions - 1]
            table.mark_hashed(table.num_positions - 1, table.num_positions)

    def extend(self, table: BlockTable, num_tokens: int) -> None:
        """Put the running state at the last position; positions passed over stay null."""
        assert isinstance(table, StateTable)
        required = cdiv(num_tokens, self.block_size)
        if required > table.num_positions:
            table.ids += self.pool.take(self.num_groups)
            table.positions.append(required - 1)
            table.num_positions = required

    def free_unneeded(self, table: BlockTable, num_processed: int) -> None:
        """Give back the states before the one that the next token starts from."""
        assert isinstance(table, StateTable)
        end = (num_processed - 1) // self.block_size
        num_gone = sum(position < end for position in table.positions)
        if num_gone:
            self._release_states(table, num_gone)

    def free(self, table: BlockTable) -> None:
        """Give back all states."""
        assert isinstance(table, StateTable)
        self._release_states(table, len(table.positions))

    def _release_states(self, table: StateTable, count: int) -> None:
        for nth in range(self.num_groups):
            blocks = table.ids[nth : count * self.num_groups : self.num_groups]
            self.pool.put_unhashed([block for block in blocks if not self.pool.is_hashed(block)])
            self.pool.put_hashed([block for block in reversed(blocks) if self.pool.is_hashed(block)])
        del table.ids[: count * self.num_groups]
        del table.positions[:count]

    def cache(self, table: BlockTable, keys: Sequence[int], num_tokens: int, prompt_tokens: int, junction: int) -> None:
        """Hash the states at block ends that may be hit later."""
        super().cache(table, keys, num_tokens, prompt_tokens, junction)
        assert isinstance(table, StateTable)
        # The state at the prompt's last boundary counts as written by every step that starts from it.
        unit = self.policy.hash_unit
        if num_tokens and num_tokens == (prompt_tokens - 1) // unit * unit:
            if num_tokens // self.block_size - 1 in table.positions:
                self._written_this_step.add(keys[num_tokens // unit - 1])

    def _hash(self, table: BlockTable, keys: Sequence[int], start: int, stop: int) -> None:
        assert isinstance(table, StateTable)
        for nth, position in enumerate(table.positions):
            if start <= position < stop:
                key = self.block_keys(keys, position, position + 1)[0]
                blocks = table.ids[nth * self.num_groups : (nth + 1) * self.num_groups]
                for group, block in zip(self.groups, blocks, strict=True):
                    self.pool.hash_blocks(group, [key], [block])
                self._written_this_step.add(key)

    def next_event(self, table: BlockTable) -> int:
        """The next block boundary, or the token after it, which frees the state before."""
        assert isinstance(table, StateTable)
        boundary = table.num_positions * self.block_size
        if len(table.positions) > 1:
            return min(boundary, self.computed_when_unneeded(table.positions[0]))
        return boundary

    def held_blocks(self, table: BlockTable) -> Iterator[int]:
        """Ids of all states in the table."""
        return iter(table.ids)


def mamba_manager(
    spec: MambaSpec, groups: range, pool: BlockPool, policy: CachePolicy, max_blocks: int
) -> MambaManager:
    """The manager for the spec's cache mode."""
    manager = MambaAlignManager if spec.cache_mode == "align" else MambaManager
    return manager(spec, groups, pool, policy, max_blocks)
