"""What the memory ledger has to know of a replica's requests: how many tokens they have, plan and read."""

from collections.abc import Iterator

from kvcache.ledger import LEDGER_PARTS, Ledger, TokenCounts
from kvcache.manager import RequestBlocks
from simulator.batch import Batch
from simulator.running import contexts_before_step, idle_in_step
from simulator.scheduler import Scheduler

__all__ = ["BYTE_COLUMNS", "PoolBytes"]

BYTE_COLUMNS = tuple(f"{part}_bytes" for part in LEDGER_PARTS)


class PoolBytes:
    """The bytes of a replica's pool, part by part, while a step is planned.

    Decodes are summed up by the scheduler already; all others are few, and looked at one by one.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ledger = Ledger(scheduler.manager)
        summed = [reach.key for reach in scheduler.reaches]
        self._sums = [summed.index(spec.reach) if spec.reach in summed else None for spec in self._ledger.reading]

    def sample(self, batch: Batch | None) -> tuple[float, ...]:
        """Bytes in the order of `BYTE_COLUMNS`; `batch` was planned last, None if nothing runs."""
        return tuple(self._ledger.parts(self._counts(batch), self._holding).values())

    def _counts(self, batch: Batch | None) -> TokenCounts:
        if batch is None:
            return TokenCounts(0, 0, (0,) * len(self._sums))
        others = [num_computed for _, num_computed in batch.prefill_chunks]
        others += [num_computed for _, num_computed in idle_in_step(self._scheduler)]
        return TokenCounts(
            computed=batch.decode_context_tokens + sum(others),
            planned=batch.num_tokens,
            read=tuple(self._num_read(nth, batch, others) for nth in range(len(self._sums))),
        )

    def _num_read(self, nth: int, batch: Batch, others: list[int]) -> int:
        spec, nth_sum = self._ledger.reading[nth], self._sums[nth]
        if nth_sum is None:  # no layer computes what this one keeps
            return sum(spec.seen_before(num_computed) for _, num_computed in self._holding())
        return batch.decode_window_tokens[nth_sum] + sum(map(spec.seen_before, others))

    def _holding(self) -> Iterator[tuple[RequestBlocks, int]]:
        for request, num_computed in contexts_before_step(self._scheduler):
            yield request.blocks, num_computed
