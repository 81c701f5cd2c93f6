"""Allocates while a child process allocates, too. Both inherit GLAKE_TRACE."""

import os
import subprocess
import sys

import glake
from glake import _C
from glake.errors import GlakeError

if sys.argv[1:] == ["child"]:
    _C.free(_C.malloc(5000))
    if "%p" in os.environ["GLAKE_TRACE"]:
        sys.exit()
    try:
        with glake.record_trace(os.environ["GLAKE_TRACE"]):
            print("record_trace: begun")
    except GlakeError as error:
        print(f"record_trace: {type(error).__name__}: {error}", flush=True)
    sys.exit()

first = _C.malloc(1000)
child = subprocess.Popen([sys.executable, __file__, "child"])
assert child.wait() == 0
second = _C.malloc(2000)
_C.free(second)
_C.free(first)
print("parent", os.getpid())
print("child", child.pid)
