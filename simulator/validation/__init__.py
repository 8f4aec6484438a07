"""Replays of runs that were measured on real servers, beside what was measured: a module for each source of data.

`rtx4090` is one run of vLLM on an RTX 4090, whose kernels were measured too (`kernel_profile`). The data are not part
of the project: each module says which files it reads.
"""
