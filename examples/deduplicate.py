"""Two processes that have loaded the same weights hold them once. On a GPU: a torch module's.

GLAKE_DRIVER=sim GLAKE_SIM_MACHINE=example python examples/deduplicate.py
"""

import ctypes
import multiprocessing
import os

import glake

SIZE = 8 << 20


def load() -> dict[str, glake.Buffer]:
    """Equal weights in each process."""
    weights = {f"layer{index}": glake.empty(SIZE) for index in range(4)}
    for name, buffer in weights.items():  # on a GPU by copies, as it has no host addresses
        ctypes.memset(buffer.ptr, ord(name[-1]), SIZE)
    return weights


def child() -> None:
    """Finds the parent's weights, and makes its own private again to write them."""
    shared = glake.deduplicate(weights := load())
    print(f"the child: {shared.found_bytes >> 20} MiB found, {shared.given_back_bytes >> 20} freed")
    shared.close()
    ctypes.memset(weights["layer0"].ptr, 0, SIZE)


if __name__ == "__main__":
    if "GLAKE_SIM_MACHINE" not in os.environ:
        raise SystemExit("both processes need one simulated machine: " + __doc__.splitlines()[2])
    shared = glake.deduplicate(weights := load())
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    intact = ctypes.string_at(weights["layer0"].ptr, 1) == b"0"
    print(f"the parent: {shared.shared_bytes >> 20} MiB shared, intact: {intact}")
