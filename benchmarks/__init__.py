"""Benchmarks: how fast a replay is, beside vLLM's own scheduler where that is at hand. Not tests.

python -m benchmarks --help
"""
