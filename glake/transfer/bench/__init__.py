"""Compares glake's copies on a simulated machine with plain copies, GLake's equal shares and the
bound.

`run.measure` does what `glake bench transfer` does; docs/transfer-bench.md says how to read it.
"""
