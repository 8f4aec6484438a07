"""Traffic: request traces read from public formats, made from a model of arrivals, and reshaped.

Read `trace.Trace` first (what every workload is), then `readers.read_trace` (from a file),
`synthetic.synthesize` (from a model) and `transform` (slices, rates, ticks, mixtures, samples).
`describe.describe` says what is in a trace, and what looks wrong with it. `sessions.SessionTrace` is traffic whose
requests wait for one another: read by `readers.read_sessions`, made by `synthetic_sessions.synthesize_sessions`,
described by `describe_sessions.describe_sessions`.
"""

from workloads.describe import Histogram, LengthStats, TraceDescription, describe
from workloads.describe_sessions import SessionsDescription, Spread, describe_sessions
from workloads.readers import holds_sessions, read_sessions, read_trace
from workloads.sessions import Call, Session, SessionTrace, SubAgent, first_sessions, one_call_each
from workloads.synthetic import (
    Arrivals,
    Conversations,
    Lengths,
    SharedPrefixes,
    Traffic,
    conversation_demo,
    synthesize,
)
from workloads.synthetic_sessions import conversation_demo_sessions, session_starts_s, synthesize_sessions
from workloads.ticks import find_tick_s
from workloads.trace import Trace, TraceError, TraceRequest
from workloads.transform import merge, sample, scale_rate, slice_rows, slice_time, spread_ticks

__all__ = [
    "Arrivals",
    "Call",
    "Conversations",
    "Histogram",
    "LengthStats",
    "Lengths",
    "Session",
    "SessionTrace",
    "SessionsDescription",
    "SharedPrefixes",
    "Spread",
    "SubAgent",
    "Trace",
    "TraceDescription",
    "TraceError",
    "TraceRequest",
    "Traffic",
    "conversation_demo",
    "conversation_demo_sessions",
    "describe",
    "describe_sessions",
    "find_tick_s",
    "first_sessions",
    "holds_sessions",
    "merge",
    "one_call_each",
    "read_sessions",
    "read_trace",
    "sample",
    "scale_rate",
    "session_starts_s",
    "slice_rows",
    "slice_time",
    "spread_ticks",
    "synthesize",
    "synthesize_sessions",
]
