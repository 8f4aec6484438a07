"""What a run leaves behind: its tables, and the summary made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simulator.host_tally import HostTally
from simulator.table import Columns, frame_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """One simulated run; times are seconds on the simulation's clock."""

    scenario: dict[str, Any]
    """What was asked for, resolved: model, GPU, flags. Plain JSON values."""
    capacity: dict[str, Any]
    """What the memory holds, on each rank.

    num_blocks (the null block included), bytes_per_block, pool_bytes, remainder_bytes (too few for one more block;
    optional), kv_budget_bytes, weight_bytes, kv_cache_tokens, max_concurrency (requests of the longest length), and
    groups: each with kind, layers, padding_layers, block_size (tokens) and page_bytes.
    """
    tables: Mapping[str, Columns]
    """requests, steps and token_gaps, by column: see the properties of these names; and sessions, if there were any."""
    summary: dict[str, Any]
    """What `metrics.summarize` made of the tables."""
    host_tally: HostTally | None = None
    """What the host tier did, if there was one: `summary["host_tier"]` is made of it."""
    measured_memory: dict[str, Any] | None = None
    """What the pool took as real memory, if it was backed: see `backing.Backing.measured`."""

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """A row per request.

        request_id, arrival_s, first_scheduled_s, first_token_s, finish_s (NaN where it did not happen), prompt_tokens,
        output_tokens, cached_tokens (prefix hit at the first admission), num_preemptions, priority, session, status
        ("finished", "rejected" or "unfinished"), reason. With a host tier also loaded_tokens: those behind the hit
        that were fetched at the first admission.
        """
        return frame_of(self.tables["requests"])

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """A row per batch, in order of time: one step, or several equal ones.

        step (index of the first), num_steps, start_s, end_s. Sums over the row: prefill_tokens, num_preempted,
        evictions. At its beginning: num_prefills, num_decodes, running, waiting, held_blocks, cached_blocks (free,
        but they can still be hit), free_blocks (all free ones, cached included). In sampled rows, and NaN in others:
        the memory ledger, a column {part}_bytes for each of `kvcache.ledger.LEDGER_PARTS`; they add up to the budget,
        which is pool_bytes and the remainder.
        """
        return frame_of(self.tables["steps"])

    @cached_property
    def token_gaps(self) -> "pd.DataFrame":
        """gap_s and count: times between neighbouring tokens of one request that are not one step apart.

        All other gaps follow from the steps: each step gives num_decodes gaps of its own duration.
        """
        return frame_of(self.tables["token_gaps"])

    @cached_property
    def sessions(self) -> "pd.DataFrame":
        """A row per session of a closed loop, in the order in which they came. Raises KeyError where there were none.

        session, start_s (before its first think time), end_s (NaN if it did not end), num_calls and num_subagents
        (those of sub-agents included), model_s (time with a call in flight, its own or a sub-agent's).
        """
        return frame_of(self.tables["sessions"])

    def to_json(self) -> dict[str, Any]:
        """The run without its tables: scenario, capacity and everything measured.

        No wall-clock time is in it, measured memory apart: that is of the machine, not of the run.
        """
        measured = {} if self.measured_memory is None else {"measured_memory": self.measured_memory}
        return {"scenario": self.scenario, "capacity": self.capacity, **self.summary, **measured}
