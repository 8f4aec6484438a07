"""A witness: while a trace replays, every slot is really written, and read back as attention would read it.

It watches a replica beside its recorder, and does at once in the pool's memory what the planned step would do on a GPU.
Tables of the moment are what the step is launched with. With asynchronous scheduling the step before may still run
then; but steps run in the order in which they are planned, so the order of writes and reads is the same.

Memory changes only where it is written: so a slot is read when it is written, and everything that is read once more as
soon as a block is written that several places of block tables name. All reads of a step can be done in full instead
(`rereads`): that is slower and plainer, and what the short cut is tested against.

In a row of equal steps the scheduler tells when block tables change (`RunWatcher`).
"""

from collections.abc import Mapping, Sequence

from kvcache.pages import KVPages
from simulator.batch import Batch
from simulator.marked_pool import MarkedPool, Writer
from simulator.replica import StepObserver
from simulator.request import Request
from simulator.running import contexts_after_step
from simulator.scheduler import Scheduler
from simulator.token_content import TokenContent
from simulator.witness_tables import Life, Span, StateTables, Step, Tables, TokenTables

__all__ = ["Witness"]


class Witness:
    """Writes and reads marks for all that a scheduler plans; a wrong mark raises InvariantError.

    own-marks: what a step reads is what the trace says is there, in every layer that has marks.
    within-reach: the tables have a block for all that a step reads and writes.
    """

    def __init__(
        self,
        pages: KVPages,
        scheduler: Scheduler,
        observer: StepObserver,
        *,
        rereads: bool = False,
        every_layer: bool = False,
    ) -> None:
        """`observer` is told all that the witness is told; the scheduler's `run_watcher` is the witness from now on."""
        managers = scheduler.manager.managers
        self.pool = MarkedPool(pages, [manager.groups for manager in managers], every_layer=every_layer)
        self._observer = observer
        self._scheduler = scheduler
        self._rereads = rereads
        self._tables: list[Tables] = [
            (StateTables if manager.spec.kind == "mamba" else TokenTables)(nth, manager, self.pool)
            for nth, manager in enumerate(managers)
        ]
        self._content: dict[int, TokenContent] = {}
        """By the request's identity: ids of a trace may come twice."""
        self._lives: dict[int, Life] = {}
        """By the order of admission."""
        scheduler.run_watcher = self

    def expect(self, request: Request, content: TokenContent) -> None:
        """A request may come whose tokens are these."""
        self._content[id(request)] = content

    # A witness is a `StepObserver` ...

    def planned(self, start_s: float, scheduler: Scheduler, batch: Batch) -> None:
        """Do what the planned step does."""
        self._observer.planned(start_s, scheduler, batch)
        plan = scheduler.plan
        for request in plan.rejected:
            self._content.pop(id(request), None)
        num_new = {request.order: num_tokens for request, num_tokens in plan.chunks}
        self._do_all(num_new)

    def settled(self, start_s: float, end_s: float, num_steps: int, batch: Batch, ended: list[Request]) -> None:
        """Forget the requests that ended."""
        self._observer.settled(start_s, end_s, num_steps, batch, ended)
        for request in ended:
            self._content.pop(id(request), None)

    # ... and a `RunWatcher`.

    def before_change(self, request: Request, num_computed: int) -> None:
        """Do what a decode has done so far, where its block table is about to forget it."""
        life = self._lives[request.order]
        if any(tables.must_look(life, num_computed) for tables in self._tables):
            self._forget_ended()
            self._do([Span(life, life.written, num_computed, num_computed - 1)])

    def ran_on(self) -> None:
        """Do what all have done in the row of steps."""
        self._do_all({})

    def _do_all(self, num_new: Mapping[int, int]) -> None:
        """Do what every running request has computed since it was last looked at."""
        self._forget_ended()
        lives, spans = self._lives, []
        for request, num_computed in contexts_after_step(self._scheduler):
            order = request.order
            life = lives.get(order)
            if life is None:
                life = lives[order] = self._begin(request, num_computed - num_new[order])
            if num_computed > life.written:
                spans.append(Span(life, life.written, num_computed, num_computed - num_new.get(order, 1)))
        if spans:
            self._do(spans)

    def _forget_ended(self) -> None:
        running, lives = self._scheduler.running, self._lives
        for order in [order for order in lives if order not in running]:
            for tables in self._tables:
                tables.forget(lives[order])
            del lives[order]

    def _begin(self, request: Request, hit_tokens: int) -> Life:
        content = self._content[id(request)]
        writer = Writer(request.order, request.request_id, content, request.max_tokens)
        self.pool.add_writer(writer)
        return Life(writer, content.marks(request.max_tokens), request.blocks.tables, hit_tokens)

    def _do(self, spans: Sequence[Span]) -> None:
        step, all_tables = Step(spans), self._tables
        for tables in all_tables:
            tables.before(step)
        for tables in all_tables:
            tables.write()
        are_intact = [tables.after() for tables in all_tables]
        for life, _, end, _ in spans:
            life.written = end
        if self._rereads or not all(are_intact):
            self._reread([*spans, *([] if all(are_intact) else self._waiting_spans(spans))])

    def _waiting_spans(self, spans: Sequence[Span]) -> list[Span]:
        """What those would read next that compute nothing in this step."""
        computing, running = {id(span.life) for span in spans}, self._scheduler.running
        waiting = [life for order, life in self._lives.items() if order in running and id(life) not in computing]
        return [Span(life, life.written, life.written, life.written) for life in waiting]

    def _reread(self, spans: Sequence[Span]) -> None:
        for tables in self._tables:
            tables.reread(spans)
