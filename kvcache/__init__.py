"""The allocator: which blocks hold which tokens. It knows no model, no clock and no trace.

Read `specs` (what one layer keeps), `grouping` and `layout` (from layers to a pool), then `manager`
(the verbs) and down from there: `coordinator`, `managers`, `block_pool`.
"""
