"""What became of a request's prefix before it came: who computed how much of it, which blocks were hashed and lost."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from kvcache.hit_report import Cut, MissingBlock
from kvcache.manager import KVCacheManager, RequestBlocks
from simulator.story import Cause, Moment

__all__ = ["PrefixHistory"]

FLAG = "--prefix-cache-retention-interval"


@dataclass(slots=True)
class _Sharer:
    """A request that has the same beginning, perhaps the watched one itself."""

    name: str
    shared_tokens: int
    """Tokens that it has in common with the watched request, as far as prefix keys tell."""
    computed: int = 0
    """Of those, how many have been computed, at any time."""
    when: Moment | None = None
    """When the last of them were."""
    resumed_at: int = 0
    """The least of its hits: it has computed what lies behind it itself."""
    is_running: bool = False
    chunk_ends: dict[int, Moment] = field(default_factory=dict)
    """After how many tokens steps ended."""

    def reached(self, num_tokens: int) -> Moment | None:
        """When so many tokens were computed."""
        ends = [when for tokens, when in sorted(self.chunk_ends.items()) if tokens >= num_tokens]
        return ends[0] if ends else self.when


@dataclass(slots=True)
class _Event:
    by: str
    when: Moment


class PrefixHistory:
    """Keeps the events of the keys of one request; says why a block is missing now."""

    def __init__(self, manager: KVCacheManager, blocks: RequestBlocks, max_tokens: int) -> None:
        """Of the first `max_tokens` of a request like `blocks`."""
        unit = manager.hash_unit
        self._manager = manager
        self.own: RequestBlocks | None = None
        """The watched request's, once it has arrived."""
        self._hash_unit = unit
        self._units = blocks.keys.first(max_tokens // unit)[: max_tokens // unit]
        self._num_shared = min(blocks.keys.num_shared, len(self._units))
        self._sharers: dict[int, _Sharer | None] = {}
        """By the identity of their blocks; None: has nothing in common."""
        self._all: list[_Sharer] = []
        self._hashed: dict[int, _Event] = {}
        self._lost: dict[int, _Event] = {}

    # Noting.

    def begin(self, blocks: RequestBlocks) -> None:
        """A request has arrived: what was known of another one in the same place counts no more."""
        self._sharers.pop(id(blocks), None)

    def hashed(self, keys: list[int], by: str, when: Moment) -> None:
        """The keys find a block from now on."""
        for key in keys:
            self._hashed[key] = _Event(by, when)
            self._lost.pop(key, None)

    def lost(self, keys: list[int], by: str, when: Moment) -> None:
        """The keys find no block any more."""
        for key in keys:
            self._lost[key] = _Event(by, when)

    def admitted(self, blocks: RequestBlocks, name: str, hit_tokens: int) -> None:
        """A request begins with this hit, for the first time or again."""
        number = id(blocks)
        if number not in self._sharers:
            self._sharers[number] = self._sharer(blocks, name, hit_tokens)
        if sharer := self._sharers[number]:
            sharer.resumed_at = min(sharer.resumed_at, hit_tokens)

    def computed(self, num_tokens: int, blocks: RequestBlocks, when: Moment) -> None:
        """A request has computed so many tokens, or will have at the end of the planned step."""
        sharer = self._sharers.get(id(blocks))
        if sharer is None:
            return
        sharer.is_running = True
        if num_tokens <= sharer.shared_tokens:
            sharer.chunk_ends[num_tokens] = when
        shared = min(num_tokens, sharer.shared_tokens)
        if shared > sharer.computed:
            sharer.computed, sharer.when = shared, when

    def freed(self, blocks: RequestBlocks) -> None:
        """A request gave back its blocks."""
        if sharer := self._sharers.get(id(blocks)):
            sharer.is_running = False

    def _sharer(self, blocks: RequestBlocks, name: str, hit_tokens: int) -> _Sharer | None:
        if blocks is self.own:
            shared_units = len(self._units)
        else:
            most = min(blocks.keys.num_shared, self._num_shared)
            theirs, ours = blocks.keys.first(most), self._units
            # A key names a whole prefix, so where one differs all later ones do.
            shared_units = bisect_left(range(most), True, key=lambda unit: theirs[unit] != ours[unit])
        if not shared_units:
            return None
        sharer = _Sharer(name, shared_units * self._hash_unit, resumed_at=hit_tokens)
        self._all.append(sharer)
        return sharer

    # Asking.

    @property
    def computed_tokens(self) -> int:
        """Tokens of the beginning that anybody has computed so far."""
        return max((sharer.computed for sharer in self._all), default=0)

    def cause(self, cut: Cut) -> Cause | None:
        """Why an attention type shortened a hit."""
        missing = cut.missing
        if missing is None:
            end = cut.before
            return None if cut.before == cut.after else Cause("alignment", cut.after, end, cut.after, 0, 0)
        key = next((key for key in missing.keys if key in self._lost), None)
        if key is None:
            return self._cause_of_unhashed(cut.manager, missing)
        lost, hashed = self._lost[key], self._hashed[key]
        if self._who_computed(missing, lost.when.step):  # again, and it was not hashed again
            return self._cause_of_unkept(cut.manager, missing, lost.when.step)
        evicted = _cause("evicted", missing, lost.by, lost.when)
        return replace(evicted, computed_by=hashed.by, computed_when=hashed.when)

    def _cause_of_unhashed(self, index: int, missing: MissingBlock) -> Cause:
        start, end = missing.start_token, missing.end_token
        if self._who_computed(missing):
            return self._cause_of_unkept(index, missing)
        ahead = next((sharer for sharer in self._all if sharer.shared_tokens >= end and sharer.is_running), None)
        if ahead is not None:
            return replace(_cause("being_computed", missing, ahead.name, ahead.when), tokens=ahead.computed)
        longest = max(self._all, key=lambda sharer: sharer.computed, default=None)
        if longest is not None and longest.computed > start:
            return replace(_cause("not_full", missing, longest.name, longest.when), tokens=longest.computed)
        return _cause("never_computed", missing)

    def _who_computed(self, missing: MissingBlock, after_step: int = -1) -> list[_Sharer]:
        """Who computed all of a block, after a step, in the order in which they came."""
        return [
            sharer
            for sharer in self._all
            if sharer.resumed_at <= missing.start_token
            and sharer.computed >= missing.end_token
            and (when := sharer.reached(missing.end_token)) is not None
            and when.step > after_step
        ]

    def _cause_of_unkept(self, index: int, missing: MissingBlock, after_step: int = -1) -> Cause:
        """Of a block that somebody has computed after a step, and that was not hashed since."""
        manager = self._manager.managers[index]
        alignment, end = self._manager.scheduler_block, missing.end_token
        able = self._who_computed(missing, after_step)
        aligned = [sharer for sharer in able if sharer.computed // alignment * alignment >= end]
        if not aligned:
            return _cause("alignment", missing, able[-1].name, able[-1].when)
        last = aligned[-1]
        if manager.spec.kind == "mamba":
            writers = [sharer for sharer in aligned if end in sharer.chunk_ends]
            if not writers:
                before = max((at for at in last.chunk_ends if at < end), default=0)
                return replace(_cause("no_state", missing, last.name, last.reached(end)), tokens=before)
            last = writers[-1]
        unkept = _cause("not_kept", missing, last.name, last.reached(end))
        return replace(unkept, setting=_setting(missing.resume_at, alignment))


def _setting(resume_at: int, alignment: int) -> str:
    """With the widest interval, a power of two of alignments, that keeps what resuming after so many tokens needs."""
    steps = resume_at // alignment
    widest = steps & -steps
    return f"{FLAG} {'dense' if widest == 1 else widest * alignment}"


def _cause(kind: str, missing: MissingBlock, by: str | None = None, when: Moment | None = None) -> Cause:
    return Cause(
        kind=kind,
        start_token=missing.start_token,
        end_token=missing.end_token,
        resume_at=missing.resume_at,
        num_groups=missing.num_groups,
        num_groups_missing=len(missing.keys),
        by=by,
        when=when,
        rounded_from=missing.rounded_from,
    )
