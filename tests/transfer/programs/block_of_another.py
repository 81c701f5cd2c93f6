"""The owner of a block and a child that opens it both copy it (argument: the block's text)."""

import subprocess
import sys

import numpy as np

import glake.transfer as t
from glake import _C

SIZE = 8 << 20


def opened(text: str) -> None:
    """In the child: reads what the owner wrote, and writes something else."""
    address, found = _C.ipc_open(text, 1)
    assert found >= SIZE
    shared = t.Raw(address, SIZE, 1)
    data = np.empty(SIZE, np.uint8)
    t.copy(data, shared).wait()
    assert (data == 7).all()
    t.copy(shared, np.full(SIZE, 9, np.uint8)).wait()
    t.default_engine().close()
    _C.ipc_close(address)


def owned() -> None:
    """In the owner: writes, has a child open the block, and reads what the child wrote."""
    block = _C.malloc(SIZE, 1)
    mine = t.Raw(block, SIZE, 1)
    t.copy(mine, np.full(SIZE, 7, np.uint8)).wait()
    child = subprocess.run([sys.executable, __file__, _C.ipc_share(block)])
    assert child.returncode == 0
    data = np.empty(SIZE, np.uint8)
    t.copy(data, mine).wait()
    assert (data == 9).all()


if len(sys.argv) > 1:
    opened(sys.argv[1])
else:
    owned()
