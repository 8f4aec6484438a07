"""The scheduler of a replica: it decides each step, and knows for how many steps what it decided stays the same.

Between arrivals most steps differ in nothing but the lengths of decodes: they are planned once, as a row.
"""

from kvcache.errors import InvariantError
from kvcache.manager import KVCacheManager
from kvcache.managers import BlockTable
from simulator.contexts import Reach
from simulator.plan import Plan, RunWatcher, SchedulerSettings
from simulator.request import Request
from simulator.step_scheduler import StepScheduler

__all__ = ["Plan", "Scheduler", "SchedulerSettings"]


class Scheduler(StepScheduler):
    """Decides for one replica what is computed in each step, or in a row of equal ones."""

    def __init__(self, manager: KVCacheManager, settings: SchedulerSettings, reaches: tuple[Reach, ...] = ()) -> None:
        super().__init__(manager, settings, reaches)
        self.run_trace: list[tuple[int, int]] | None = None
        """If it is a list: (free blocks, running) after each further step of a run, for who wants every step."""
        self.run_watcher: RunWatcher | None = None

    def _num_equal_steps(self, plan: Plan) -> int:
        """For how many steps the batch stays as it is, unless somebody arrives; a request may end with the last.

        Meanwhile tables grow (`run_on`): while there is room for sure, and nobody waits for what a window gives back.
        """
        if self.prefilling or plan.finishing or plan.stalled or plan.preempted or plan.must_replan:
            return 1
        decodes = self._decodes
        if not decodes or (self.waiting and any(unsettled.finishing for unsettled in self.in_flight)):
            return 1
        num_steps = min(decodes.next_finish + 1, decodes.contexts.next_change) - self.step
        waits_for_blocks = self.waiting and len(self.running) < self.settings.max_num_seqs
        if waits_for_blocks or not self.manager.has_room_for_decodes(len(decodes), num_steps):
            num_steps = min(num_steps, decodes.next_due - self.step)
        return max(1, num_steps)

    def run_on(self, num_steps: int) -> None:
        """The batch planned last runs so many times more: count its tokens, and let block tables grow."""
        plan, first, decodes = self.plan, self.step, self._decodes
        growing: list[BlockTable] = []
        for step in range(first, first + num_steps):
            if decodes.has_due(step):
                self.step = step
                for request in decodes.take_due(step):
                    self._grow(plan, request, growing)
            if self.run_trace is not None:
                num_free = self.manager.pool.num_free - sum(table.manager.num_groups for table in growing)
                self.run_trace.append((num_free, len(self.running)))
        self.manager.take_for(growing)
        if plan.preempted:
            raise InvariantError("room-to-run-on: a run of equal steps had to preempt")
        decodes.contexts.advance(first, num_steps)
        self.step = first + num_steps
        plan.num_steps += num_steps
        self._leave_decoding(plan)
        if self.run_watcher is not None:
            self.run_watcher.ran_on()

    def _grow(self, plan: Plan, request: Request, growing: list[BlockTable]) -> None:
        """Serve a decode that is due within a run; `growing` are tables whose blocks are taken at its end."""
        num_tokens = self.step + request.origin + 1
        if self.manager.only_grows(request.blocks, num_tokens):
            growing += self.manager.reserve(request.blocks, num_tokens)
            self._come_back(plan, request)
        else:
            if self.run_watcher is not None:
                self.run_watcher.before_change(request, num_tokens - 1)
            self.manager.take_for(growing)
            growing.clear()
            self._extend_decode(plan, request)
