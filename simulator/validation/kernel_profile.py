"""Steps composed of kernels that were measured one by one: no roofline, no server.

Three tables of one layer's kernels, in microseconds (LLMServingSim's profile of Llama-3.1-8B on an RTX 4090, vLLM
0.19, eager mode): `dense.csv` (layer, tokens), `per_sequence.csv` (layer, sequences) and `attention.csv`
(prefill_chunk, kv_prefill, n_decode, kv_decode), the last with prompts and decodes in one launch.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from simulator.batch import Batch
from simulator.latency import Work

__all__ = ["KernelProfile"]

Floats = npt.NDArray[np.float64]

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
ONCE = ("embedding", "final_layernorm")
"""Kernels that a step runs once, not in each layer."""
TWICE = ("layernorm",)
"""Before attention and before the MLP."""


class KernelProfile:
    """Step times between measured kernels, by interpolation; it is a `StepTimes`."""

    source = "kernels that were measured on the same card"

    def __init__(self, folder: Path, num_layers: int) -> None:
        """Read the tables of a folder."""
        dense = pd.read_csv(folder / "dense.csv").pivot(index="tokens", columns="layer", values="time_us")
        per_sequence = pd.read_csv(folder / "per_sequence.csv").groupby("sequences")["time_us"].sum()
        in_layers = dense.drop(columns=list(ONCE)).sum(axis=1) + dense[list(TWICE)].sum(axis=1)
        self._num_layers = num_layers
        self._dense = _curve(num_layers * in_layers + dense[list(ONCE)].sum(axis=1))
        self._per_sequence = _curve(per_sequence)
        self._places, self._attention_us = _attention_grid(pd.read_csv(folder / "attention.csv"))

    def durations_s(self, batch: Batch) -> list[float]:
        """[batch.num_steps], seconds."""
        return [self._step_s(batch, step) for step in range(batch.num_steps)]

    def least_s(self, work: Work) -> float:
        """Nothing is promised."""
        return 0.0

    def _step_s(self, batch: Batch, step: int) -> float:
        num_rows = batch.num_decodes + len(batch.prefill_chunks)
        num_us = np.interp(batch.num_tokens, *self._dense) + np.interp(num_rows, *self._per_sequence)
        return 1e-6 * float(num_us + self._num_layers * self._one_attention_us(batch, step))

    def _one_attention_us(self, batch: Batch, step: int) -> float:
        """Of one layer: each prompt alone, and what decodes of one length add beside prompts of so many tokens."""
        context = batch.decode_context_tokens / max(batch.num_decodes, 1) + (step if batch.num_decodes else 0)
        if not batch.prefill_chunks:
            return self._measured_us(0, 0, batch.num_decodes, context)
        new = batch.num_prefill_tokens
        before = sum(tokens * computed for tokens, computed in batch.prefill_chunks) / new
        alone_us = sum(self._measured_us(tokens, computed, 0, 0) for tokens, computed in batch.prefill_chunks)
        beside_us = self._measured_us(new, before, batch.num_decodes, context) - self._measured_us(new, before, 0, 0)
        return alone_us + beside_us

    def _measured_us(self, *values: float) -> float:
        """Between the nearest measurements, linearly along each of `AXES`."""
        corners = self._attention_us
        for places, value in zip(self._places, values, strict=True):
            left = int(np.clip(np.searchsorted(places, value, side="right") - 1, 0, len(places) - 2))
            part = (value - places[left]) / (places[left + 1] - places[left])
            corners = (1 - part) * corners[left] + part * corners[left + 1]
        return float(corners)


def _curve(times_us: pd.Series) -> tuple[Floats, Floats]:
    return times_us.index.to_numpy(dtype=np.float64), times_us.to_numpy(dtype=np.float64)


def _attention_grid(table: pd.DataFrame) -> tuple[list[Floats], Floats]:
    """The four axes, and the times on them: [prompt tokens, before them, decodes, their context], microseconds."""
    places = [np.unique(table[name].to_numpy(dtype=np.float64)) for name in AXES]
    grid = np.full([len(axis) for axis in places], np.nan)
    grid[tuple(np.searchsorted(axis, table[name]) for axis, name in zip(places, AXES, strict=True))] = table["time_us"]
    # Without prompts, or without decodes, there is one row where their contexts do not matter.
    grid[0, 1:] = grid[0, 0]
    grid[:, :, 0, 1:] = grid[:, :, 0, :1]
    grid[0, :, 0] = 0.0
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    # Of the most decodes there is no measurement beside prompts: as it grew up to there.
    grid[1:, :, -1] = 3 * grid[1:, :, -2] - 2 * grid[1:, :, -3]
    return places, grid
