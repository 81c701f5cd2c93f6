"""The environment in which a program's own large copies go through glake (docs/intercept.md).

The library libglake_intercept.so is preloaded. It has no Python, so it cannot find out how the GPUs
are joined. Variables tell it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from glake import children, library_path
from glake.errors import DriverAbsent, GlakeError, InvalidArgument


def library() -> Path:
    """The library to preload. Raises DriverAbsent if it was not built."""
    path = library_path().with_name("libglake_intercept.so")
    if not path.is_file():
        raise DriverAbsent(
            f"{path} is not there: reinstall glake, or run `make build` in a checkout"
        )
    if any(sign in str(path) for sign in (":", " ", "\t", "\n")):
        raise InvalidArgument(
            f"{str(path)!r} has a colon or a blank, which no list of libraries to preload can "
            "hold: install glake at a path without"
        )
    return path


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env`, changed so that glake carries the copies of a program that is started in it.

    With GLAKE_DRIVER=sim[:preset] the program runs over the stand-ins for CUDA's libraries, on that
    simulated machine. GLAKE_INTERCEPT_TOPOLOGY, if it is set, stays.

    Raises:
        DriverAbsent: a library is missing.
        InvalidArgument: a path that LD_PRELOAD cannot contain.
        InvalidDevice, InvalidOption, UnknownOption: no topology can be found.
    """
    first = library()
    changed = dict(env)
    driver = changed.get("GLAKE_DRIVER") or "cuda"
    simulated = driver == "sim" or driver.startswith("sim:")
    if simulated:
        from glake.dryrun import libraries

        preset = driver.partition(":")[2]
        changed = libraries.environment(changed | ({"GLAKE_SIM_PRESET": preset} if preset else {}))
        changed["GLAKE_DRIVER"] = "cuda"
    if not changed.get("GLAKE_INTERCEPT_TOPOLOGY"):
        changed["GLAKE_INTERCEPT_TOPOLOGY"] = _topology(changed, simulated)
    changed["GLAKE_INTERCEPT_VISIBLE"] = changed.get("CUDA_VISIBLE_DEVICES", "")
    preload = [str(first), *filter(None, [changed.get("LD_PRELOAD")])]
    changed["LD_PRELOAD"] = os.pathsep.join(preload)
    return changed


def _topology(env: Mapping[str, str], simulated: bool) -> str:
    """The topology for the program. For the simulator it is the whole platform as it is. Otherwise
    it is the one that a process with `env` finds."""
    if simulated and not env.get("CUDA_VISIBLE_DEVICES"):
        from glake.transfer import topology

        return topology.current({**env, "GLAKE_DRIVER": "sim"}).text()
    found = subprocess.run(
        children.command("glake.intercept"), env=dict(env), capture_output=True, text=True
    )
    if found.returncode != 0:
        said = found.stderr.strip().splitlines()
        raise DriverAbsent(
            f"how the GPUs are joined is not known: {said[-1] if said else 'no reason given'}; "
            "GLAKE_INTERCEPT_TOPOLOGY takes a platforms file"
        )
    return found.stdout


def command(program: str, args: tuple[str, ...], as_module: bool) -> list[str]:
    """The command line for a Python script, a module, or any executable. Raises InvalidArgument."""
    path = Path(program)
    script = path.is_file() and (path.suffix == ".py" or not os.access(path, os.X_OK))
    if as_module or script:
        return [sys.executable, *(["-m"] if as_module else []), program, *args]
    found = str(path.absolute()) if path.is_file() else shutil.which(program)
    if found is None:
        raise InvalidArgument(
            f"no such program: {program} is no file here, and not on PATH (a module is run with -m)"
        )
    return [found, *args]


if __name__ == "__main__":
    from glake.transfer import topology

    try:
        print(topology.current().text())
    except GlakeError as error:
        sys.exit(str(error))
