"""A child (argument: its program) opens this process's block."""

import subprocess
import sys

from glake import _C
from glake.allocator import sharing

ptr = _C.malloc(5_000_000)
done = subprocess.run(
    [sys.executable, sys.argv[1]], input=sharing.share(ptr), capture_output=True, text=True
)
assert (done.returncode, done.stdout) == (0, "opened\n"), done.stderr
_C.free(ptr)
_C.shutdown()
