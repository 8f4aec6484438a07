"""What block tables must hold, said a second time and plainly: tokens instead of hashes, sets instead of ranges.

It knows of each block which tokens were computed into it, so it can say of any table whether a request would
read its own tokens there.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvcache.errors import InvariantError
from kvcache.manager import KVCacheManager, RequestBlocks
from kvcache.managers import SingleTypeManager
from kvcache.specs import KVCacheSpec, cdiv

FIRST_READ = {
    "full": lambda spec, query: 0,
    "mla": lambda spec, query: 0,
    "sliding": lambda spec, query: max(0, query - spec.window + 1),
    "chunked": lambda spec, query: query // spec.chunk * spec.chunk,
}
"""The first token that the query at a position reads, for each kind that keeps tokens."""


class Content(NamedTuple):
    """What was computed into a block: the tokens that `prefix` names, up to the last one in the block."""

    group: int
    prefix: int
    step: int


class Prefixes:
    """Names beginnings of token lists by numbers: equal numbers, equal tokens from the first on."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The names of the first 0, 1, 2, ... tokens."""
        names = [0]
        for token in tokens:
            names.append(self._numbers.setdefault((names[-1], token), len(self._numbers) + 1))
        return names


class ModelRequest:
    """One request: all tokens that it will ever have, and how far it is."""

    def __init__(self, tokens: list[int], public: int, prompt_tokens: int) -> None:
        self.tokens = tokens
        self.public = public
        """Tokens that other requests may share; the others are its own."""
        self.prompt_tokens = prompt_tokens
        self.names: list[int] = []
        self.blocks: RequestBlocks
        self.is_running = False
        self.known = prompt_tokens
        self.computed = 0
        self.processed = 0
        self.in_flight_from = 0
        """Tokens that were computed before the last planned step."""
        self.planned_in_step = -1
        self.always_cached = True
        """Whether its blocks were looked at for caching after every step."""
        self.kept_from: list[int] = []
        """For each manager the first position that was not given back."""
        self.state_tokens: list[dict[int, int]] = []
        """For each manager the states that it holds: position to tokens that went into it."""


class Model:
    """The truth about a manager's blocks."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.content: dict[int, Content] = {}
        self.step = 0

    # What is expected before a call.

    def longest_hit(self, request: ModelRequest) -> int:
        """The longest length at which every type can resume, tried one by one."""
        if not self.manager.settings.enable_prefix_caching:
            return 0
        cached = self.cached()
        alignment = self.manager.scheduler_block
        longest = (request.known - 1) // alignment * alignment
        for length in range(longest, 0, -alignment):
            if all(self._can_resume(manager, request, length, cached) for manager in self.manager.managers):
                return length
        return 0

    def cached(self) -> set[tuple[int, int]]:
        """(group, prefix) of the contents that some key finds."""
        return {self.content[block][:2] for block in self.manager.pool.block_of.values()}

    def _can_resume(
        self, manager: SingleTypeManager, request: ModelRequest, length: int, cached: set[tuple[int, int]]
    ) -> bool:
        size = manager.block_size
        ends = [(position + 1) * size for position in _positions_read(manager.spec, length)]
        return all((group, request.names[end]) in cached for end in ends for group in manager.groups)

    def blocks_to_admit(self, request: ModelRequest, hit: int, num_tokens: int, reserve: int) -> int:
        """Blocks that must be free beside those of the hit."""
        needed = reserved = 0
        for manager in self.manager.managers:
            have = hit // manager.block_size
            most = manager.spec.max_blocks_per_request(
                self.manager.layout.max_model_len, self.manager.layout.max_in_flight_tokens
            )
            now = cdiv(num_tokens, manager.block_size) - have
            whole = cdiv(reserve, manager.block_size)
            whole = (min(whole, most) if manager.spec.kind in ("sliding", "chunked") else whole) - have
            if _keeps_states(manager):
                now, whole = min(now, 1), min(whole, 1)
            needed += max(now, 0) * manager.num_groups
            reserved += max(whole, 0) * manager.num_groups
        return max(needed, reserved)

    def blocks_to_extend(self, request: ModelRequest, num_tokens: int) -> int:
        """Blocks that a running request takes to get slots for so many tokens."""
        needed = 0
        for manager in self.manager.managers:
            size = manager.block_size
            new = cdiv(num_tokens, size) - cdiv(request.computed, size)
            needed += (min(new, 1) if _keeps_states(manager) else new) * manager.num_groups
        return needed

    # What a call changes.

    def admitted(self, request: ModelRequest, hit: int, num_tokens: int) -> None:
        """The request runs, from its hit on."""
        managers = self.manager.managers
        request.is_running = True
        request.computed = request.processed = hit
        request.always_cached = True
        request.kept_from = [_first_position(manager.spec, hit) for manager in managers]
        request.state_tokens = [
            {hit // manager.block_size - 1: hit} if hit and _keeps_states(manager) else {} for manager in managers
        ]
        self.computes(request, num_tokens)

    def gives_back(self, request: ModelRequest, num_processed: int) -> None:
        """So many tokens are settled."""
        request.processed = num_processed
        for nth, manager in enumerate(self.manager.managers):
            first = _first_position(manager.spec, num_processed)
            request.kept_from[nth] = max(request.kept_from[nth], first)
            request.state_tokens[nth] = {
                position: tokens for position, tokens in request.state_tokens[nth].items() if position >= first
            }

    def computes(self, request: ModelRequest, num_tokens: int) -> None:
        """The tokens up to `num_tokens` are computed in this step, into the blocks of the tables."""
        for nth, manager in enumerate(self.manager.managers):
            size = manager.block_size
            last = cdiv(num_tokens, size) - 1
            if _keeps_states(manager):
                request.state_tokens[nth][last] = num_tokens
            first = last if _keeps_states(manager) else request.computed // size
            for position, group, block in self.table(nth, request):
                if position >= first:
                    end = min((position + 1) * size, num_tokens)
                    self.content[block] = Content(group, request.names[end], self.step)
        request.in_flight_from, request.computed = request.computed, num_tokens
        request.planned_in_step = self.step

    def freed(self, request: ModelRequest) -> None:
        """The request holds nothing."""
        request.is_running = False
        request.computed = request.processed = 0

    # What must hold after every call.

    def table(self, nth: int, request: ModelRequest) -> Iterator[tuple[int, int, int]]:
        """(position, group, block) of what the request's table of the n-th manager names."""
        manager, table = self.manager.managers[nth], request.blocks.tables[nth]
        num_held = len(table.ids) // manager.num_groups
        positions = table.positions if _keeps_states(manager) else range(table.first_held, table.first_held + num_held)
        ids = iter(table.ids)
        for position in positions:
            for group in manager.groups:
                yield position, group, next(ids)

    def check(self, requests: Sequence[ModelRequest]) -> None:
        """Raise InvariantError unless tables name what each request needs, all of it and nothing else.

        enough-and-no-more: tables name the positions that a later query reads, for the tokens computed so far.
        own-tokens: each block that a request holds was computed from that request's tokens.
        nothing-waits-with-blocks: a request that does not run holds no block.
        """
        for request in requests:
            for nth, manager in enumerate(self.manager.managers):
                held = list(self.table(nth, request))
                if not request.is_running:
                    if held:
                        raise InvariantError("nothing-waits-with-blocks")
                    continue
                ends = self._ends(nth, manager, request)
                if [(position, group) for position, group, _ in held] != [
                    (position, group) for position in ends for group in manager.groups
                ]:
                    raise InvariantError(f"enough-and-no-more: {manager.spec.kind} at {sorted(ends)}")
                for position, group, block in held:
                    if self.content[block][:2] != (group, request.names[ends[position]]):
                        raise InvariantError(f"own-tokens: block {block} at {position} of group {group}")

    def check_full_is_cached(self, request: ModelRequest, num_tokens: int) -> None:
        """Raise InvariantError unless every full block of full attention is found, just after caching.

        full-keeps-all: full attention caches each block as soon as hits of others can reach its end.
        """
        if not self.manager.coordinator.caches:
            return
        cached = self.cached()
        num_tokens = self.manager.coordinator.num_cacheable(num_tokens)
        for manager in self.manager.managers:
            ends = range(manager.block_size, num_tokens + 1, manager.block_size)
            wanted = {(group, request.names[end]) for end in ends for group in manager.groups}
            if manager.spec.kind in ("full", "mla") and not wanted <= cached:
                raise InvariantError("full-keeps-all: a full block has no key")

    def _ends(self, nth: int, manager: SingleTypeManager, request: ModelRequest) -> dict[int, int]:
        """The positions that the request must hold, each with the tokens that must have gone into its block."""
        if _keeps_states(manager):
            return dict(sorted(request.state_tokens[nth].items()))
        size = manager.block_size
        positions = range(request.kept_from[nth], cdiv(request.computed, size))
        return {position: min((position + 1) * size, request.computed) for position in positions}


def _keeps_states(manager: SingleTypeManager) -> bool:
    return manager.spec.kind == "mamba" and manager.spec.cache_mode == "align"


def _first_position(spec: KVCacheSpec, num_computed: int) -> int:
    """The first position that a query after `num_computed` tokens still reads."""
    if spec.kind == "mamba":
        return max(0, num_computed - 1) // spec.block_size
    return FIRST_READ[spec.kind](spec, num_computed) // spec.block_size


def _positions_read(spec: KVCacheSpec, length: int) -> range:
    """The cached positions that a request needs to resume after `length` tokens."""
    return range(_first_position(spec, length), length // spec.block_size)
