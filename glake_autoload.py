"""The process-start switch: PyTorch calls load() once, at the end of `import torch`.

It is the `torch.backends` entry point. So it runs in every process that imports torch, also in
spawned workers. It does nothing unless GLAKE_ALLOCATOR asks for glake. It is a top-level module and
imports only the standard library, because importing torch here would re-enter an unfinished import.
"""

import os
import sys
import warnings

OFF = ("", "0", "off", "no", "false")


def load() -> None:
    """Makes glake torch's allocator if GLAKE_ALLOCATOR asks for it; touches no device.

    A failure is a RuntimeWarning, and torch keeps its own allocator. With GLAKE_STRICT=1 the
    failure is raised, and `import torch` fails.
    """
    if "_GLAKE_DRY_RUN" in os.environ:  # a process of `glake dry-run`
        from glake.dryrun import child

        child.start()
    if "libglake_intercept.so" in os.environ.get("LD_PRELOAD", ""):  # `glake run --intercept`
        try:
            _import_glake()
            from glake.transfer import ranks

            ranks.share()
        except Exception as error:
            _warn(f"glake: GPUs of other ranks are not used: {error}")
    if os.environ.get("GLAKE_ALLOCATOR", "").lower() in OFF:
        return
    try:
        _import_glake()
        from glake.allocator import torch as adapter

        adapter.enable_from_environment()
    except Exception as error:
        if os.environ.get("GLAKE_STRICT", "").lower() not in OFF:
            raise
        _warn(f"glake is off, torch keeps its own allocator: {error}")


def _import_glake() -> None:
    """Imports the glake beside this file. The script's folder, which comes first on the path, may
    have a folder of that name."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    try:
        import glake  # noqa: F401 (what it brings)
    finally:
        del sys.path[0]


def _warn(message: str) -> None:
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:  # even if warnings are errors, `import torch` must not fail
        sys.stderr.write(f"RuntimeWarning: {message}\n")
