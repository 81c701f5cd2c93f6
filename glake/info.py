"""What `glake info` shows: the library, the driver in use, its devices, what else is installed."""

import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

from glake import config, library_path
from glake.errors import GlakeError


def describe() -> dict[str, Any]:
    """Facts by name. Opens the driver; an absent one is reported, not raised.

    UnknownOption or InvalidOption if a GLAKE_* variable is wrong.
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
        "owed_bytes": 0,  # of this process's devices: what the driver refused to take back
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
    facts["options"] = {name: os.environ.get(name, text) for name, text in names.items()}
    return facts


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _torch() -> str | None:
    """The installed torch's version, found without importing it."""
    if importlib.util.find_spec("torch") is None:
        return None
    return importlib.metadata.version("torch")
