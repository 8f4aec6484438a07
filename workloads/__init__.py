"""Traffic: request traces read from public formats, made from a model of arrivals, and reshaped.

Read `trace.Trace` first (what every workload is), then `readers.read_trace` (from a file),
`synthetic.synthesize` (from a model) and `transform` (slices, rates, ticks, mixtures, samples).
`describe.describe` says what is in a trace, and what looks wrong with it.
"""

from workloads.describe import Histogram, LengthStats, TraceDescription, describe
from workloads.readers import read_trace
from workloads.synthetic import (
    Arrivals,
    Conversations,
    Lengths,
    SharedPrefixes,
    Traffic,
    conversation_demo,
    synthesize,
)
from workloads.ticks import find_tick_s
from workloads.trace import Trace, TraceError, TraceRequest
from workloads.transform import merge, sample, scale_rate, slice_rows, slice_time, spread_ticks

__all__ = [
    "Arrivals",
    "Conversations",
    "Histogram",
    "LengthStats",
    "Lengths",
    "SharedPrefixes",
    "Trace",
    "TraceDescription",
    "TraceError",
    "TraceRequest",
    "Traffic",
    "conversation_demo",
    "describe",
    "find_tick_s",
    "merge",
    "read_trace",
    "sample",
    "scale_rate",
    "slice_rows",
    "slice_time",
    "spread_ticks",
    "synthesize",
]
