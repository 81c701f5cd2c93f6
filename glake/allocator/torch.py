"""Makes glake PyTorch's allocator: by the environment at `import torch`, or by enable().

With a GPU glake is installed by the CUDA adapter, or by the `basic` plug-in if that is chosen. Over
the simulated GPU it is installed by the emulation, in which torch's CPU tensors are in glake's
memory. This cannot be undone in a process.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from glake import _C, config, extras, integrations
from glake.allocator import adapter, alloc_conf, basic, debug, emulation, stats
from glake.errors import AlreadyEnabled, GlakeError, InvalidOption


@dataclass(frozen=True)
class _Active:
    mode: str
    variables: dict[str, str]
    config: config.Config


_active: _Active | None = None
_lock = threading.Lock()
_here = threading.local()  # `enabling`: this thread is in enable(), which imports torch


def enable(
    driver: str | None = None,
    policy: str | None = None,
    limit: str | int | float | None = None,
    **options: str | float | bool | None,
) -> None:
    """Makes glake PyTorch's allocator for all later tensors, and opens the driver.

    Options that are not given come from the GLAKE_* variables. Calling it again with the same
    options does nothing.

    Args:
        driver: "cuda", "sim[:preset]" or the path of a driver library.
        policy: "balanced" or "compact".
        limit: the most physical memory of each device: bytes, a fraction of the device, or text
            such as "70GiB".
        options: any other option by its name, without GLAKE_ (`glake info --options` lists them).

    Raises:
        AlreadyEnabled: glake is on with other options.
        UnknownOption: there is no such option.
        InvalidOption: an option does not take that value.
        DriverAbsent: there is no driver.
        AdapterBuildError: the adapter could not be compiled.
        GlakeError: PyTorch is missing, or its build has no CUDA.
    """
    given = {"driver": driver, "policy": policy, "limit": limit, **options}
    wanted = config.variables({name: _text(name, value) for name, value in given.items()})
    _import_torch()
    with _lock:
        if _active is None:
            _install(wanted, strict=True)
        else:
            _require_same(_active, wanted)
    _C.device_count()


def enable_from_environment() -> None:
    """Enables glake as GLAKE_ALLOCATOR asks. Touches no device. Raises a GlakeError if it fails."""
    if getattr(_here, "enabling", False):
        return  # the options of enable() have priority over the environment
    _import_torch()  # if this starts the import, torch's own call of this function does nothing
    with _lock:
        if _active is None:
            strict = config.parse("strict", os.environ.get(f"{config.PREFIX}STRICT", ""))
            mode = _install({} if strict else _known_hooks(), strict)
            if mode == "emulation":
                emulation.CoverageReport().start()


def _known_hooks() -> dict[str, str]:
    """GLAKE_INTEGRATIONS without misspelt names, which a warning lists. So a misspelt name loses a
    job only that hook, and not the allocator."""
    variable = f"{config.PREFIX}INTEGRATIONS"
    known, unknown = config.known_integrations(os.environ.get(variable, "") or "none")
    for word in unknown:
        near = config.nearest_integration(word)
        text = f"{variable}: there is no integration {word!r}{near}; it is left out"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return {variable: known} if unknown else {}


def mode() -> str | None:
    """Who serves torch: "adapter", "basic", "emulation", or None for torch itself."""
    return _active.mode if _active else None


def _import_torch() -> None:
    """Imports torch. Must be called without the lock, because `import torch` may end in
    enable_from_environment(), which takes the lock."""
    _here.enabling = True
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise GlakeError(
            f"glake.enable() is for PyTorch, which is not installed here: {extras.TORCH}"
        ) from error
    finally:
        _here.enabling = False


def _install(wanted: dict[str, str], strict: bool) -> str:
    global _active
    import torch

    variables = {k: v for k, v in os.environ.items() if k.startswith(config.PREFIX)} | wanted
    settings = config.read(variables)
    simulated = settings.driver.split(":")[0] == "sim" or "libsimcuda" in settings.driver
    if simulated and settings.allocator == "basic" and torch.version.cuda is None:
        raise InvalidOption(
            "GLAKE_ALLOCATOR=basic needs a CUDA build of PyTorch; with GLAKE_DRIVER=sim use "
            "GLAKE_ALLOCATOR=1"
        )
    mode = "basic" if settings.allocator == "basic" else "emulation" if simulated else "adapter"
    if mode != "emulation" and torch.version.cuda is None:
        raise GlakeError(
            f"this PyTorch ({torch.__version__}) has no CUDA, and the driver is "
            f"{settings.driver!r}: set GLAKE_DRIVER=sim for the simulated GPU, or install a CUDA "
            "build of PyTorch"
        )
    if mode == "emulation":
        _refuse_beside_cuda(settings.driver)
    torchs = alloc_conf.read(os.environ) if mode == "adapter" else None
    fraction = torchs.fraction if torchs is not None else None
    for variable, value in wanted.items():
        if config.lookup(variable).reader == "core":
            _C.configure(variable.removeprefix(config.PREFIX), value)
        else:
            os.environ[variable] = value
    debug.start(settings.debug, host_writes=mode == "emulation")
    if mode == "emulation":
        emulation.install(settings, strict)
    elif mode == "adapter":
        adapter.install(settings, fraction if settings.limit is None else None)
        _keep_nccl_from_graph_buffers(settings)
        if torchs is not None:
            torchs.warn(settings)
        alloc_conf.follow(settings)
    else:
        basic.install()
    _active = _Active(mode, variables, settings)
    stats.mark_optimizer_steps()
    if mode != "basic":
        integrations.arm(settings.integrations)
    return mode


def _keep_nccl_from_graph_buffers(settings: config.Config) -> None:
    """Keeps NCCL from registering the buffers of captured collectives. NCCL assumes that each
    buffer is one driver allocation. Stitched memory consists of many, and NCCL hangs
    (pytorch/pytorch#158029)."""
    if settings.private_pools == "stitched":
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")


def _refuse_beside_cuda(driver: str) -> None:
    """Raises InvalidOption if CUDA tensors would stay with torch's own allocator."""
    import torch

    if torch.version.cuda is None:
        return
    count = torch.cuda.device_count()  # by NVML, if there is one: no device is opened
    if count > 0:
        raise InvalidOption(
            f"GLAKE_DRIVER={driver} serves the CPU tensors of a process without a GPU, and this "
            f"CUDA build of PyTorch sees {count}: its CUDA tensors would stay with PyTorch's own "
            "allocator. Set GLAKE_DRIVER=cuda (real and simulated GPUs alike), or hide the GPUs "
            'with CUDA_VISIBLE_DEVICES=""'
        )


def _require_same(active: _Active, wanted: dict[str, str]) -> None:
    asked = config.read(active.variables | wanted)
    for field in dataclasses.fields(config.Config):
        is_now, would_be = getattr(active.config, field.name), getattr(asked, field.name)
        if is_now != would_be:
            raise AlreadyEnabled(
                f"glake is already on with {field.name}={is_now}, not {would_be}; options are "
                "fixed once torch uses glake: give them before, or in the GLAKE_* variables"
            )


def _text(name: str, value: Any) -> str | None:
    """An option's value as text. Raises InvalidOption for True and False where they would count as
    the numbers 1 and 0."""
    if isinstance(value, bool):
        option = config.lookup(name)
        if not option.is_switch():
            raise InvalidOption(f"{name}={value}: not one of its values; it takes {option.takes}")
        return str(int(value))
    if isinstance(value, float):
        return f"{Decimal(repr(float(value))):f}"  # options do not take a number such as 1e-05
    return None if value is None else str(value)
