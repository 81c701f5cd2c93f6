"""Metrics say what a forked child cannot read."""

import os

from glake import _C

_C.malloc(1000)
child = os.fork()
if child == 0:
    code = 1
    try:
        from glake.metrics.reading import Reading

        read = {each.metric.name: dict(each.values) for each in Reading().read()}
        assert read["readable"][("allocator",)] == 0, read
        assert read["readable"][("nodes",)] == 1 and "allocated_bytes" not in read
        code = 7
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
