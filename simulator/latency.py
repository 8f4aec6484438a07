"""How long a step takes: the seam, and its fake.

Behind it are a roofline (`roofline`), with figures of one's own server if there are some (`calibration`), and
kernels that were measured (`silicon`).
"""

from dataclasses import dataclass
from typing import Protocol

from simulator.batch import Batch

__all__ = ["STATED", "ConstantStepTimes", "StepTimes", "Work"]

STATED = "stated"
"""Where step times are from that a person says."""


@dataclass(frozen=True, slots=True)
class Work:
    """What steps of one replica compute in all, however it is cut into steps; for bounds."""

    num_steps: float
    """So many, at least."""
    num_tokens: float
    num_rows: float
    """Requests in a step, summed over the steps."""
    max_step_tokens: int
    """The token budget."""
    prefill_pairs: tuple[float, ...]
    """Pairs of a prompt's token and one that it attends to: of layers that see everything, then for each window."""
    decode_reads: tuple[float, ...]
    """Tokens that decodes attend to, themselves included: in the same order."""
    num_decodes: float = 0.0
    """Tokens that decodes compute."""


class StepTimes(Protocol):
    """A model of step times."""

    @property
    def source(self) -> str:
        """Where they are from, in words."""

    def durations_s(self, batch: Batch) -> list[float]:
        """How long each step of the batch takes: [batch.num_steps], seconds."""

    def least_s(self, work: Work) -> float:
        """Seconds that no schedule of this work can do without."""


@dataclass(frozen=True, slots=True)
class ConstantStepTimes:
    """Every step takes the same time: for tests, and a reader's first experiment."""

    seconds: float
    source: str = STATED

    def durations_s(self, batch: Batch) -> list[float]:
        """[batch.num_steps], seconds."""
        return [self.seconds] * batch.num_steps

    def least_s(self, work: Work) -> float:
        """The steps alone."""
        return self.seconds * work.num_steps
