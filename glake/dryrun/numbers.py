"""Makes PyTorch's CPU kernels compute ops on CUDA tensors (docs/dry-run.md).

In numbers mode they compute all ops. In memory mode they compute ops on small values that come from
the host.

The work is done by an adapter that is compiled at first use against the installed torch
(csrc/torch/numbers.cpp), in a process that has the stand-ins for CUDA's libraries.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glake import children
from glake.allocator import adapter_build
from glake.dryrun import libraries
from glake.errors import DryRunError

_library: ctypes.CDLL | None = None


def install() -> None:
    """Makes this process compute every aten op from now on. torch must be imported.

    Raises DryRunError if GPU memory is phantom, or if the stand-ins for CUDA's libraries are not
    loaded. Raises AdapterBuildError if the adapter could not be compiled.
    """
    if _library is None:
        library = _install(known=False)
        _follow_seeds(library)
        _follow_replays(library)


def install_known() -> None:
    """For phantom memory: computes ops on small values that the host copied to a GPU.

    torch must be imported. Raises DryRunError if GPU memory is not phantom, or if the stand-ins for
    CUDA's libraries are not loaded. Raises AdapterBuildError if the adapter could not be compiled.
    """
    if _library is None:
        _install(known=True)


def _install(known: bool) -> ctypes.CDLL:
    global _library
    # As the last step of its import, torch gives some of its ops further CUDA kernels (Triton's, if
    # Triton is installed). They must be there before: the last to register wins.
    if importlib.util.find_spec("torch._native") is not None:
        importlib.import_module("torch._native")
    library = ctypes.CDLL(str(adapter_build.build(adapter_build.NUMBERS)))
    text = [ctypes.c_char_p, ctypes.c_size_t]
    for name, given in (
        ("install", [ctypes.c_int]),
        ("ops", []),
        ("failure", []),
        ("let_autograd_end", []),
    ):
        function = getattr(library, f"glake_numbers_{name}")
        function.restype, function.argtypes = ctypes.c_size_t, [*given, *text]
    refused = _text(functools.partial(library.glake_numbers_install, int(known)))
    if refused:
        raise DryRunError(refused)
    _library = library
    atexit.register(_finish)
    return library


def ops() -> dict[str, str]:
    """How each aten op with a CUDA kernel is handled, by name and overload.

    "computed": by the CPU's kernel of that name. "rule": by another kernel. "computed first": its
    shape depends on numbers. "native": it has no numbers to compute. "not computable": it raises.
    """
    if _library is None:
        raise DryRunError("numbers are not installed in this process: call install() first")
    found: dict[str, str] = json.loads(_text(_library.glake_numbers_ops))
    return found


def _text(read: Callable[[Any, int], int]) -> str:
    room = 1 << 18
    text = ctypes.create_string_buffer(room)
    read(text, room)
    return text.value.decode(errors="replace")


def _follow_seeds(library: ctypes.CDLL) -> None:
    """After torch.manual_seed, makes CUDA's random numbers equal the CPU generator's."""
    import torch

    theirs = torch.manual_seed

    @functools.wraps(theirs)
    def manual_seed(seed: Any) -> torch.Generator:
        made = theirs(seed)
        library.glake_numbers_reseeded()
        return made

    torch.manual_seed = torch.random.manual_seed = manual_seed


def _follow_replays(library: ctypes.CDLL) -> None:
    """Makes a graph draw from where its generators are when it is replayed, as on a GPU."""
    import torch

    theirs = torch.cuda.CUDAGraph.replay

    @functools.wraps(theirs)
    def replay(graph: torch.cuda.CUDAGraph) -> None:
        draws = library.glake_numbers_before_replay()
        theirs(graph)
        if draws:
            library.glake_numbers_replayed()

    setattr(torch.cuda.CUDAGraph, "replay", replay)  # noqa: B010 - mypy takes no other spelling


def _finish() -> None:
    """Computes the queued rest of the job while torch's kernels still exist. The driver ends its
    queues later, when these kernels are gone. Lets autograd's threads end what they free. Reports
    failures that no call of the job has reported."""
    import torch

    if _library is None:
        return
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # reported below
            torch.cuda.synchronize()
            if _autograd_has_threads() and (
                refused := _text(_library.glake_numbers_let_autograd_end)
            ):
                print(f"glake: autograd may still be at work: {refused}", file=sys.stderr)
    if failure := _text(_library.glake_numbers_failure):
        print(f"glake: {failure}", file=sys.stderr)


def _autograd_has_threads() -> bool:
    """Whether this process has made threads for backward(). A child made by fork() has none."""
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            if name.read_text().startswith("pt_autograd"):
                return True
    return False


def main() -> None:
    """Prints the aten ops that cannot be computed: python -m glake.dryrun.numbers"""
    if "simcuda" not in os.environ.get("_GLAKE_NUMBERS", ""):  # starts again with the stand-ins
        environment = libraries.environment({**os.environ, "_GLAKE_NUMBERS": "simcuda"})
        os.execve(sys.executable, children.command("glake.dryrun.numbers"), environment)
    import torch

    install()
    found = ops()
    kinds = Counter(found.values())
    print(f"torch {torch.__version__}: {len(found)} aten ops with a CUDA kernel")
    for kind in ("computed", "computed first", "rule", "native", "not computable"):
        print(f"{kinds[kind]:6} {kind}")
    for name in sorted(name for name, kind in found.items() if kind == "not computable"):
        print(name)


if __name__ == "__main__":
    main()
