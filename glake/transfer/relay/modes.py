"""Finds, from the process's environment, over which GPUs its engine may relay, and which are its
own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from glake import config
from glake.errors import InvalidArgument

MODES = ("all", "lent", "own")


def chosen(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """One of MODES. Raises InvalidArgument for another value, and InvalidOption or UnknownOption
    for a variable."""
    environ = os.environ if environ is None else environ
    if given is not None:
        if given not in MODES:
            raise InvalidArgument(f"relays={given!r}: take one of {', '.join(MODES)}")
        return given
    named = config.read(environ).relays
    if named is not None:
        return named
    return "lent" if one_of_several(environ) else "all"


def told(environ: Mapping[str, str] | None = None) -> bool:
    """Whether GLAKE_RELAYS names a mode."""
    return config.read(os.environ if environ is None else environ).relays is not None


# Variables that launchers set: the number of processes on the node, or else of all processes; and
# the process's rank on the node.
_ON_NODE = (
    "LOCAL_WORLD_SIZE",  # torchrun
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # Open MPI
    "MPI_LOCALNRANKS",  # MPICH, Intel MPI
    "PMI_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",  # srun: "8", "8(x2)", "8,4": a list by node
)
_IN_ALL = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)


def one_of_several(environ: Mapping[str, str]) -> bool:
    """Whether a launcher (torchrun, mpirun, srun, or bare RANK and WORLD_SIZE) says that this node
    may have several of the job's processes. If only the number of all processes is known, several
    of them are assumed to be here."""
    for name in _ON_NODE:
        if environ.get(name):
            return re.match(r"\d+", environ[name]) is None or not re.fullmatch(
                r"1(\(x\d+\))?", environ[name]
            )
    return any(environ.get(name, "1") not in ("", "1") for name in _IN_ALL)


def own_gpus(visible: int, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """The GPU that this process uses by launchers' convention. Its number is the process's rank on
    the node. If the process sees one GPU, it is that one."""
    environ = os.environ if environ is None else environ
    if visible == 1:
        return (0,)
    rank = next((environ[name] for name in _RANKS if environ.get(name)), "")
    return (int(rank),) if rank.isdecimal() and int(rank) < visible else ()
