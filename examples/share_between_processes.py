"""A block of GPU memory in two processes. One shares it by a text, the other maps it, uncopied.

GLAKE_DRIVER=sim GLAKE_SIM_MACHINE=example python examples/share_between_processes.py
"""

import ctypes
import multiprocessing
import os
import sys

import glake

if "GLAKE_SIM_MACHINE" not in os.environ:
    sys.exit("both processes need one simulated machine: " + __doc__.splitlines()[2])

SIZE = 4 << 20


def child(text: str) -> None:
    """Reads what the parent wrote, and answers in the same block."""
    address, size = glake.open_shared(text)
    # On a GPU a kernel or a copy would do this. Only simulated memory has host addresses.
    assert ctypes.string_at(address, 5) == b"hello" and size == SIZE
    ctypes.memmove(address, b"world", 5)
    glake.close_shared(address)


if __name__ == "__main__":
    with glake.empty(SIZE) as block:
        ctypes.memmove(block.ptr, b"hello", 5)
        process = multiprocessing.get_context("spawn").Process(
            target=child, args=(glake.share(block.ptr),)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        print("the child answered:", ctypes.string_at(block.ptr, 5).decode())
        assert ctypes.string_at(block.ptr, 5) == b"world"
