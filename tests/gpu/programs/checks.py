"""Runs the check_* functions of a program, each by itself, and says how each ended.

A program is a script whose last lines call main(globals()). Its results are lines on stdout,
`RESULT {"name", "status", "text"}`; the test that runs it gives the names to run.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

DEVICE = torch.device("cuda", 0)
MIB = 2**20


class Skip(Exception):
    """The check does not apply here. The text says why."""


def main(program: dict[str, Any]) -> None:
    """Runs the checks named on the command line (default: all)."""
    names = sys.argv[1:] or [name for name in program if name.startswith("check_")]
    torch.zeros(1, device=DEVICE)  # PyTorch has no statistics before
    for name in names:
        status, text = "passed", ""
        try:
            program[name]()
            if program.get("CHECK_BOOKS", True):
                code, why = books()
                assert code == 0, f"glake_check: {why}"
        except Skip as skip:
            status, text = "skipped", str(skip)
        except BaseException:
            status, text = "failed", traceback.format_exc()[-3000:]
        print("RESULT " + json.dumps({"name": name, "status": status, "text": text}), flush=True)
        settle()


def settle() -> None:
    """Waits for all work, collects garbage, and removes caches and limits."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def raises(kind: type[BaseException], call: Callable[[], Any]) -> BaseException:
    """The exception that `call` raises. AssertionError if it raises none or another."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def library() -> ctypes.CDLL:
    """glake's C interface, as loaded in this process."""
    import glake

    made = ctypes.CDLL(str(glake.library_path()))
    for name in ("glake_malloc", "glake_malloc_contiguous", "glake_host_malloc"):
        if hasattr(made, name):
            getattr(made, name).restype = ctypes.c_void_p
    for name in ("glake_ipc_share", "glake_findings", "glake_stats"):
        if hasattr(made, name):
            getattr(made, name).restype = ctypes.c_size_t
    return made


def books(device: int = 0) -> tuple[int, str]:
    """The status of glake_check(), and the text of its findings."""
    glake = library()
    code = glake.glake_check(device)
    text = ctypes.create_string_buffer(8192)
    glake.glake_last_error(text, ctypes.c_size_t(len(text)))
    return code, text.value.decode(errors="replace")


def stat(name: str) -> int:
    """One of glake's own statistics."""
    import glake

    return int(glake.stats(0)[name])


def sleep(milliseconds: float) -> None:
    """Keeps the current stream busy for about so long."""
    torch.cuda._sleep(int(milliseconds * 1e6))  # cycles, at about 1 to 2 GHz


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    """Random float32 values on the device. The same seed gives the same values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator).to(DEVICE)


def fragmented(pieces: int = 16, mib: int = 24) -> list[torch.Tensor]:
    """Fills memory with equal tensors, and returns every second one. The others leave holes. glake
    may take no more memory."""
    settle()
    held = [torch.empty(mib * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(pieces)]
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    return held[::2]


def stitch_of(pieces: int = 16, mib: int = 24) -> int:
    """Bytes of a request that fits into all holes of fragmented() together, but not into one."""
    return (pieces // 2 * mib - 4) * MIB
