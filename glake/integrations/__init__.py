"""Hooks into other packages. Those packages then use glake where it does better or sees more.

Each hook is a module here with `PACKAGE` (the name to import), `version()`, `VERSIONS` (the least
version that was tried, and the first that was not), `install()` and `uninstall()`. If glake is
PyTorch's allocator, packages that GLAKE_INTEGRATIONS allows are hooked when they are imported, or
at once if they are imported already. Importing this imports no hook and no package. See
docs/integrations.md.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from types import ModuleType

from glake import config
from glake.allocator import stats
from glake.errors import (
    GlakeError,
    InvalidArgument,
    PackageMissing,
    VersionUntried,
    WrongType,
)
from glake.hints import did_you_mean
from glake.integrations import figures, imports

__all__ = ["NAMES", "check_version", "install", "uninstall"]

NAMES = config.INTEGRATIONS
"""The names that install() takes."""
stats.also(figures.told)


def install(name: str) -> None:
    """Imports one package and hooks it. A second call does nothing.

    Args:
        name: the integration's name. NAMES lists them.

    Raises:
        InvalidArgument: there is no such integration, or CuPy's is asked for inside
            `cupy.cuda.using_allocator`.
        WrongType: the name is not a string.
        GlakeError: the package is missing, cannot be imported, or lacks what the hook replaces. Or
            glake is not PyTorch's allocator, which the hooks of torch_memory_saver and vLLM need.
        VersionUntried: the package's version is outside those tried.
    """
    hook = _hook(name)
    try:
        importlib.import_module(hook.PACKAGE)
    except ImportError as error:
        if error.name is not None and f"{hook.PACKAGE}.".startswith(f"{error.name}."):
            raise _missing(name, _package(hook)) from error
        # The package exists, but something that it needs is missing.
        raise GlakeError(
            f"integration {name}: {_package(hook)} cannot be imported: {error}"
        ) from error
    check_version(name)
    with looking_in(name):
        hook.install()
    figures.installed(name, True)


def check_version(name: str) -> None:
    """Makes the checks with which install() begins, and hooks nothing.

    Args:
        name: of the integration.

    Raises:
        InvalidArgument: there is no such integration.
        WrongType: the name is not a string.
        GlakeError: the package is missing.
        VersionUntried: the package's version is outside those tried.
    """
    hook = _hook(name)
    package = _package(hook)
    try:
        found = hook.version()
    except ModuleNotFoundError as error:
        if not isinstance(error, metadata.PackageNotFoundError) or not _is_there(package):
            raise _missing(name, package) from error
        found = "of no known version"
    first, below = hook.VERSIONS
    if not _release(first) <= _release(found) < _release(below):
        raise VersionUntried(
            f"{package} {found} is left as it is: glake's hook has been tried from {first} "
            f"to below {below}"
        )


@contextlib.contextmanager
def looking_in(name: str) -> Iterator[None]:
    """A context that turns errors about a missing part of a package into a GlakeError that names
    it.

    Args:
        name: of the integration.
    """
    hook = _hook(name)
    try:
        yield
    except GlakeError:
        raise
    except (ImportError, AttributeError) as error:
        raise GlakeError(
            f"{_package(hook)} {hook.version()} is left as it is: glake's hook does not find what "
            f"it looks for: {error}"
        ) from error


def or_warn(name: str, call: Callable[[], None]) -> None:
    """Calls a function, and turns its exceptions into a RuntimeWarning, so that the job goes on.

    Args:
        name: of the integration, for the warning.
        call: the function to call.
    """
    try:
        call()
    except Exception as error:
        text = str(error) if isinstance(error, GlakeError) else f"integration {name}: {error!r}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def uninstall(name: str) -> None:
    """Restores what was there before install(). Does nothing if there was no install().

    Args:
        name: of the integration.

    Raises:
        InvalidArgument: there is no such integration, or CuPy's is asked for inside
            `cupy.cuda.using_allocator`.
        WrongType: the name is not a string.
        RegionRefused: memory that the hook has paused must be resumed first.
    """
    _hook(name).uninstall()
    figures.installed(name, False)


def arm(allowed: tuple[str, ...]) -> None:
    """Hooks each package once it is imported. A failure is a RuntimeWarning.

    Args:
        allowed: the names of the integrations to hook.
    """
    for name in allowed:
        imports.after(
            _hook(name).PACKAGE, functools.partial(or_warn, name, functools.partial(install, name))
        )


def _package(hook: ModuleType) -> str:
    """The name of the package. A hook may wait for a module inside it."""
    return str(hook.PACKAGE).partition(".")[0]


def _is_there(package: str) -> bool:
    """Whether the package is imported or can be. Somebody may have put it into sys.modules by
    hand."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _missing(name: str, package: str) -> PackageMissing:
    return PackageMissing(
        f"integration {name}: {package} is not installed; install it as its own pages say"
    )


def _hook(name: str) -> ModuleType:
    if not isinstance(name, str):
        raise WrongType(f"an integration is named by a string, such as {NAMES[0]!r}, not {name!r}")
    if name not in NAMES:
        near = did_you_mean(name, NAMES)
        raise InvalidArgument(
            f"there is no integration {name!r}{near}; there are: {', '.join(NAMES)}"
        )
    return importlib.import_module(f"glake.integrations.{name}")


def _release(version: str) -> tuple[int, ...]:
    """(0, 0, 10) from "0.0.10rc1": the numbers before anything else."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
