"""Copies on a simulated machine: glake compared with a plain copy, GLake's equal shares and the
bound.

`run.measure` does what `glake bench transfer` does; docs/transfer-bench.md says how to read it.
"""
