"""Metrics say what a forked child cannot read."""

import os

from glake import _C
from glake import transfer as t

_C.malloc(1000)
t.stats()  # opens an engine
t.write_file(os.devnull, bytes(9)).wait()
child = os.fork()
if child == 0:
    code = 1
    try:
        from glake.metrics.reading import Reading

        read = {each.metric.name: dict(each.values) for each in Reading().read()}
        parts = ("allocator", "host", "deduplication", "transfer", "files", "nodes")
        assert read == {"readable": {(part,): 0 for part in parts}}, read
        code = 7
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
