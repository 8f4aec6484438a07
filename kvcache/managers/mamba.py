"""Mamba: one state stands for all tokens before it, and a prefix can be resumed wherever a state was kept.

In mode "none" a request keeps its running state only. In mode "align" the state that stands at the
end of a block is left behind in its own block, and the next one is written into a fresh block:

```
positions      0      1      2      3            block size 4, 14 tokens computed
             null   null   state  state          position 2: after 12 tokens, position 3: running
```
"""

from collections.abc import Collection, Iterable, Iterator

from kvcache.block_pool import BlockPool
from kvcache.errors import KVCacheError
from kvcache.hashing import PrefixKeys
from kvcache.managers.base import NEVER, BlockTable, SingleTypeManager
from kvcache.managers.cache_policy import CachePolicy
from kvcache.managers.load import Load
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

    def find_hit(self, keys: list[int], max_tokens: int) -> int:
        """The last cached state that ends on the alignment."""
        alignment, unit = self.policy.alignment, self.policy.hash_unit
        for end in range(max_tokens // alignment * alignment, 0, -alignment):
            if self.is_cached(keys[end // unit - 1]):
                return end
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

    def _hash(self, table: BlockTable, start: int, stop: int) -> None:
        super()._hash(table, start, stop)
        self._written_this_step.update(self.held_keys(table, start, stop))

    def next_to_cache(self, table: BlockTable, junction: int) -> int:
        """The next state to keep; none behind the prompt unless some are kept at intervals."""
        if self.policy.retention_interval == 0 and table.num_cached * self.block_size >= max(
            table.prompt_tokens, junction
        ):
            return NEVER
        return super().next_to_cache(table, junction)

    def may_take_hit(self, keys: list[int], hit_tokens: int) -> bool:
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
    """A table with states at a few positions only, and null blocks between them."""

    __slots__ = ("positions", "state_keys")

    def __init__(self, manager: SingleTypeManager, keys: PrefixKeys, prompt_tokens: int) -> None:
        super().__init__(manager, keys, prompt_tokens)
        self.positions: list[int] = []
        """Position of each state: `ids` holds `num_groups` blocks for each."""
        self.state_keys: list[int | None] = []
        """The key under which each state is found; None: it is not hashed."""

    def add_state(self, position: int, blocks: list[int], key: int | None) -> None:
        """Append a state."""
        self.ids += blocks
        self.positions.append(position)
        self.state_keys.append(key)
        self.free_at = self.manager.computed_when_unneeded(self.positions[0])


class MambaAlignManager(MambaManager):
    """States that are kept at block ends."""

    def new_table(self, keys: PrefixKeys, prompt_tokens: int) -> StateTable:
        """An empty table for one request."""
        return StateTable(self, keys, prompt_tokens)

    def first_hit_position(self, hit_tokens: int) -> int:
        """The one state at the hit's end."""
        return max(0, (hit_tokens - 1) // self.block_size)

    def num_blocks_at_admission(self, num_tokens: int, hit_tokens: int, capped: bool) -> int:
        """One state per group, if the request goes beyond its hit."""
        return self.num_groups if num_tokens > hit_tokens else 0

    def num_new_blocks(self, table: BlockTable, num_tokens: int) -> int:
        """One state per group, where a block boundary is crossed."""
        return self.num_groups if num_tokens > table.num_slots else 0

    def take_hit(self, table: BlockTable, blocks: list[int], hit_tokens: int) -> None:
        """Start from the cached state at the hit's end."""
        assert isinstance(table, StateTable)
        table.num_slots = hit_tokens
        table.num_cached = end = hit_tokens // self.block_size
        self.pool.touch(blocks, self.tally)
        self.tally.num_positions += 1
        (key,) = self.held_keys(table, end - 1, end)
        table.add_state(end - 1, blocks, key)

    def num_blocks_to_the_end(self, table: BlockTable, num_tokens: int) -> int:
        """One state per group at a time."""
        return self.num_new_blocks(table, num_tokens)

    def plan_load(self, keys: list[int], hit_tokens: int, num_tokens: int) -> Load:
        """One state; that of the hit must be free beside it, though it is not used (vLLM 0.32)."""
        load = super().plan_load(keys, hit_tokens, num_tokens)
        if load.cached or not hit_tokens or not self.is_cached(keys[hit_tokens // self.policy.hash_unit - 1]):
            return load
        return load._replace(counted_blocks=self.hit_blocks(keys, hit_tokens))

    def num_blocks_beyond(self, load: Load, num_tokens: int) -> int:
        """One state per group at a time."""
        return self.num_groups if load.num_missing or num_tokens > load.positions.stop * self.block_size else 0

    def take_load(self, table: BlockTable, load: Load) -> None:
        """Start from one state, wherever it ends."""
        assert isinstance(table, StateTable)
        (position,) = load.positions
        table.num_cached = position + len(load.cached)
        table.num_slots = load.positions.stop * self.block_size
        self.tally.num_positions += 1
        if load.cached:
            (key,) = self.held_keys(table, position, position + 1)
            table.add_state(position, load.cached_blocks, key)
        else:
            table.add_state(position, self.pool.take(self.num_groups), None)

    def extend(self, table: BlockTable, num_tokens: int) -> None:
        """Put the running state at the last position; positions passed over stay null."""
        assert isinstance(table, StateTable)
        if num_tokens > table.num_slots:
            num_positions = cdiv(num_tokens, self.block_size)
            table.num_slots = num_positions * self.block_size
            self.tally.num_positions += 1
            table.add_state(num_positions - 1, self.pool.take(self.num_groups, table.ids), None)

    def free_unneeded(self, table: BlockTable, num_processed: int) -> None:
        """Give back the states before the one that the next token starts from."""
        assert isinstance(table, StateTable)
        if num_processed >= table.free_at:
            end = (num_processed - 1) // self.block_size
            self._release_states(table, sum(position < end for position in table.positions))

    def take_one(self, table: BlockTable) -> None:
        """Start a new state where a decoding request crosses a block boundary."""
        self.extend(table, table.num_slots + 1)

    def free(self, table: BlockTable, num_tokens: int) -> None:
        """Give back all states."""
        assert isinstance(table, StateTable)
        self._release_states(table, len(table.positions))
        table.num_slots = table.num_cached = 0

    def _release_states(self, table: StateTable, count: int) -> None:
        if not count:
            return
        num_groups = self.num_groups
        keys_back: list[int] = []
        blocks_back: list[int] = []
        anchors_back: list[int] = []
        for nth in range(num_groups):
            blocks = table.ids[nth : count * num_groups : num_groups]
            states = list(zip(table.state_keys, blocks, strict=False))
            self.pool.put_unhashed([block for key, block in states if key is None])
            blocks_back += [block for key, block in reversed(states) if key is not None]
        for position, key in zip(table.positions[count - 1 :: -1], table.state_keys[count - 1 :: -1], strict=True):
            if key is not None:
                keys_back.append(key)
                anchors_back += self.anchors(table, position, position + 1, [key])
        self._put_hashed(keys_back, blocks_back, anchors_back)
        self.tally.num_positions -= count
        del table.ids[: count * num_groups], table.positions[:count], table.state_keys[:count]
        table.free_at = self.computed_when_unneeded(table.positions[0]) if table.positions else NEVER

    def cache(self, table: BlockTable, num_tokens: int, junction: int) -> None:
        """Hash the states at block ends that may be hit later."""
        super().cache(table, num_tokens, junction)
        assert isinstance(table, StateTable)
        # The state at the prompt's last boundary counts as written by every step that starts from it.
        unit = self.policy.hash_unit
        is_boundary = num_tokens > 0 and num_tokens == (table.prompt_tokens - 1) // unit * unit
        if is_boundary and num_tokens // self.block_size - 1 in table.positions:
            self._written_this_step.add(table.keys.first(num_tokens // unit)[num_tokens // unit - 1])

    def _hash(self, table: BlockTable, start: int, stop: int) -> None:
        assert isinstance(table, StateTable)
        for nth, position in enumerate(table.positions):
            if start <= position < stop:
                (key,) = self.held_keys(table, position, position + 1)
                blocks = table.ids[nth * self.num_groups : (nth + 1) * self.num_groups]
                self.pool.hash_blocks(self.group_keys([key]), blocks)
                table.state_keys[nth] = key
                self._written_this_step.add(key)

    def places(self, table: BlockTable) -> Iterator[tuple[int | None, int]]:
        """(key or None, block) of every place that holds a state."""
        assert isinstance(table, StateTable)
        for index, block in enumerate(table.ids):
            number, nth = divmod(index, self.num_groups)
            key = table.state_keys[number]
            yield None if key is None else key + self.key_offsets[nth], block


def mamba_manager(
    spec: MambaSpec, groups: range, pool: BlockPool, policy: CachePolicy, max_blocks: int
) -> MambaManager:
    """The manager for the spec's cache mode."""
    manager = MambaAlignManager if spec.cache_mode == "align" else MambaManager
    return manager(spec, groups, pool, policy, max_blocks)
