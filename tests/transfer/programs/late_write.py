"""Writes a file, and another one as the interpreter ends (arguments: both files)."""

import atexit
import sys

import glake.transfer as t
from glake import errors

t.write_file(sys.argv[1], bytes(5000)).wait()


def late():
    try:
        t.write_file(sys.argv[2], bytes(5000))
    except errors.TransferClosed as told:
        print(told)


atexit.register(late)
