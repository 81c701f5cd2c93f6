"""Records a trace into a file that takes nothing. Ends the recording as the argument says."""

import sys

import glake


def allocate() -> None:
    for _ in range(1000):
        glake.empty(10).free()


how, path = sys.argv[1:]
if how == "stop":
    trace = glake.record_trace(path)
    allocate()
    try:
        trace.stop()
        raise AssertionError("the trace is not whole")
    except glake.errors.FileFailed as error:
        print(error)
    trace.stop()  # it has ended
if how == "next":
    glake.record_trace(path)
    allocate()
    try:
        glake.record_trace("/dev/null")
        raise AssertionError("the trace is not whole")
    except glake.errors.FileFailed as error:
        print(error)
    with glake.record_trace("/dev/null"):
        allocate()
if how == "exit":
    trace = glake.record_trace(path)
    allocate()
if how == "option":
    allocate()
