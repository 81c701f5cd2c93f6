"""Facts for `glake info`: the library, the driver in use, its devices, other installed packages."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

from glake import config, library_path
from glake.allocator.adapter_build import installed_torch
from glake.errors import GlakeError


def describe() -> dict[str, Any]:
    """Facts by name. Opens the driver. An absent driver is reported, and not raised.

    Raises UnknownOption or InvalidOption if a GLAKE_* variable is wrong.
    """
    options = config.read()
    import glake._C as native

    facts: dict[str, Any] = {
        "version": native.version(),
        "library": str(library_path()),
        "driver": options.driver,
        "driver_library": None,
        "simulated": None,
        "devices": 0,
        "owed_bytes": 0,  # memory that the driver refused to take back from this process
        "driver_error": None,
        "cuda_headers": _cuda(native.cuda_header_version),
        "compiler": native.compiler,
        "python": sys.version.split()[0],
        "torch": _torch(),
    }
    try:
        facts["devices"] = native.device_count()
    except GlakeError as error:
        facts["driver_error"] = str(error)
    else:
        facts["driver_library"] = native.driver_path()
        owed = {number: native.owed_bytes(number) for number in range(facts["devices"])}
        facts["owed_bytes"] = sum(owed.values())
        facts["simulated"] = native.driver_path().endswith("libsimcuda.so")
    names = {config.PREFIX + name: option.default for name, option in config.OPTIONS.items()}
    facts["options"] = {name: os.environ.get(name) or text for name, text in names.items()}
    return facts


def no_device(environ: Mapping[str, str]) -> str | None:
    """The reason why a process with these variables has no device. None: it has one.

    A child process, which ends at once, finds out. In this process an opened driver would stay
    open, also for the program that replaces it. The child writes no trace and joins no shared
    machine.
    """
    result, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            reason = _reason(environ)
        except BaseException as error:
            reason = repr(error)
        os.write(answer, reason.encode(errors="replace")[:4096])
        os._exit(0)
    os.close(answer)
    with open(result, "rb") as told:
        text = told.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status != 0:
        return f"the driver ended the process that opened it (wait status {status})"
    return text or None


def _reason(environ: Mapping[str, str]) -> str:
    os.environ.clear()
    os.environ.update(environ)
    for name in ("GLAKE_TRACE", "GLAKE_SIM_MACHINE"):
        os.environ.pop(name, None)
    try:
        import glake._C as native

        devices = native.device_count()
    except GlakeError as error:
        return str(error)
    return "" if devices else "the driver has no device"


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _torch() -> str | None:
    """The version of the torch that `import torch` gives. Does not import it."""
    if importlib.util.find_spec("torch") is None:
        return None
    return installed_torch().version
