"""A forked child calls every method of its parent's handle."""

import asyncio
import os
from functools import partial

import numpy as np

from glake import _C, errors
from glake import transfer as t
from glake.transfer.offload import Move

size = 1 << 20
gpu, data = t.Raw(_C.malloc(size, 0, 0), size, 0), np.zeros(size, np.uint8)
done, running = t.copy(gpu, data).wait(), t.copy(gpu, np.ones(size, np.uint8))
moved, pinned = Move([]), t.register_host(data)


async def awaited(handle):
    await handle


child = os.fork()
if child == 0:
    calls = [
        call
        for handle in (done, running)
        for call in (
            handle.done,
            handle.wait,
            handle.result,
            handle.cancel,
            handle.progress,
            partial(handle.stream_wait, (0, 0)),
            lambda at=handle: asyncio.run(awaited(at)),
        )
    ]
    for one in (moved, pinned):
        calls += one.done, one.wait, one.progress
    for number, call in enumerate([*calls, pinned.unregister]):
        try:
            call()
        except errors.Forked:
            continue
        os._exit(number + 1)
    repr(done)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), running.wait().done())
