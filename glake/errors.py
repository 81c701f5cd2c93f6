"""Every exception that glake raises: one per status of its C interface (glake.h), then
those of its Python parts."""

import typing

__all__ = [
    "AdapterBuildError",
    "AlreadyEnabled",
    "BadMessage",
    "BadTarget",
    "BenchFailed",
    "BusyTimeout",
    "CheckpointMismatch",
    "ConvertError",
    "CopyCancelled",
    "CopyFailed",
    "CopyRefused",
    "Corrupted",
    "DataMissing",
    "DataTooShort",
    "Diverged",
    "DriverAbsent",
    "DriverError",
    "DryRunError",
    "FileFailed",
    "FolderInUse",
    "Forked",
    "GlakeError",
    "Internal",
    "InvalidArgument",
    "InvalidDevice",
    "InvalidOption",
    "InvalidPlatform",
    "InvalidPointer",
    "MemoryOwed",
    "NoRoom",
    "NoWholeCheckpoint",
    "NotExported",
    "NotOffered",
    "NotWritten",
    "OutOfMemory",
    "PackageMissing",
    "PeerFailed",
    "PeerLost",
    "PeerRefused",
    "PlanError",
    "PoolFull",
    "RankLost",
    "Reentered",
    "RefusedPickle",
    "RegionPaused",
    "RegionRefused",
    "RelayRefused",
    "RelayUnavailable",
    "ReplayError",
    "TraceError",
    "TransferClosed",
    "UnknownOption",
    "VersionUntried",
    "WrongType",
]


class GlakeError(Exception):
    """The base of all errors.

    Attributes:
        status: its glake_status of glake.h.
        begun: of an error of copy_batch(): the Transfer of copies that had begun by then. Of an
            error of deduplicate(): the Deduplicated of weights that could not be made private
            again, which are as before in all else. Else None.
    """

    status = 10
    begun: typing.Any = None


class InvalidArgument(GlakeError, ValueError):
    """A value, such as a size, stream or buffer, that the call does not accept."""

    status = 1


class InvalidDevice(GlakeError, ValueError):
    """The driver has no such device."""

    status = 2


class InvalidPointer(GlakeError, ValueError):
    """A pointer that is foreign, inside a block, or already freed."""

    status = 3


class OutOfMemory(GlakeError, MemoryError):
    """The text says who holds what, the largest size that fits, and what would help."""

    status = 4


class UnknownOption(GlakeError, KeyError):
    """An option, or a GLAKE_* variable, that glake does not have."""

    status = 5

    def __str__(self) -> str:
        # KeyError would show the sentence in quotes.
        return str(self.args[0]) if self.args else ""


class InvalidOption(GlakeError, ValueError):
    """A known option with a value that it does not take, or that was set after it was read."""

    status = 6


class DriverAbsent(GlakeError, OSError):
    """The driver library, or a symbol that glake needs of it, is missing."""

    status = 7


class DriverError(GlakeError, RuntimeError):
    """The driver refused a call. The allocator's books are as before the call."""

    status = 8


class Forked(GlakeError, RuntimeError):
    """Called in a forked child: CUDA does not survive a fork."""

    status = 9


class Internal(GlakeError, AssertionError):
    """A broken invariant: please report it."""

    status = 10


class Corrupted(GlakeError, RuntimeError):
    """Somebody wrote outside a block, after freeing it, or into a paused region's bytes."""

    status = 11


class CopyFailed(GlakeError, RuntimeError):
    """No path is left for a copy. The text says which bytes of the destination are written.

    For a copy in a stream's order this is not known. Any of the bytes may then be those of a copy
    that was made earlier.
    """

    status = 12


class CopyCancelled(GlakeError, RuntimeError):
    """A copy was cancelled. The text says which bytes of the destination are written."""

    status = 13


class CopyRefused(GlakeError, ValueError):
    """The copy cannot be made in the requested way."""

    status = 14


class BusyTimeout(GlakeError, TimeoutError):
    """The work is not done in time. It goes on."""

    status = 15


class TransferClosed(GlakeError, RuntimeError):
    """The transfer engine is not open."""

    status = 16


class MemoryOwed(DriverError):
    """The driver refused to take memory back. The text says how much. A new call tries again.

    Nothing is lost: later requests use that memory before new memory.
    """

    status = 17


class Reentered(GlakeError, RuntimeError):
    """Called in a signal handler that interrupted glake on the same thread (option `debug`)."""

    status = 18


class RegionPaused(GlakeError, RuntimeError):
    """The region is paused, or is pausing or resuming. It can neither be allocated in nor
    copied."""

    status = 19


class RegionRefused(GlakeError, RuntimeError):
    """A region cannot be paused, resumed, or saved in that place. The text says why."""

    status = 20


class WrongType(GlakeError, TypeError):
    """An argument of a type that the call does not take."""

    status = 1


class TraceError(GlakeError, ValueError):
    """A line that is not allowed in a trace, or a damaged file (docs/trace-format.md).

    Attributes:
        file: the trace's name.
        line: the line's number, from 1.
        field: which part of the line is wrong.
    """

    file: str
    line: int
    field: str


class ReplayError(GlakeError, RuntimeError):
    """A replay cannot be made: an unknown policy, or a capacity or driver that it does not take."""


# Errors of PyTorch and other packages.


class AlreadyEnabled(InvalidOption):
    """glake is on already with other options, which can no longer change."""


class AdapterBuildError(GlakeError):
    """The torch adapter could not be compiled; the text says what to install or set."""


class PackageMissing(GlakeError, ImportError):
    """A package is not installed; the text names the line that installs it."""


class VersionUntried(GlakeError, RuntimeError):
    """A hook has not been tried with this version of a package, which stays as it is."""


class NotOffered(GlakeError, NotImplementedError):
    """A call or a setting of another package that glake's hook does not offer."""


# Errors of traces, plans and dry runs.


class ConvertError(GlakeError, ValueError):
    """A file that is not a snapshot or log, or holds something unexpected; names the field."""


class RefusedPickle(GlakeError, ValueError):
    """A pickle that holds more than plain values, is broken, or is too large."""


class PlanError(GlakeError, RuntimeError):
    """A job cannot be recorded or planned; the text says why, where, and the way out."""


class BadTarget(PlanError, ValueError):
    """A TARGET that names no function, or a function that returns no step function."""


class DryRunError(GlakeError):
    """The dry run failed: no CUDA build of torch, a script that fails, or a wrong figure."""


# Errors of platforms, transfers, the relay service and the benchmark.


class InvalidPlatform(InvalidOption):
    """A platforms file, or one of its fields, that cannot be used."""


class PoolFull(OutOfMemory):
    """An offloader's pool has no room; the text says what holds it. Nothing was moved."""


class FileFailed(GlakeError, OSError):
    """A file could not be read or written whole. `errno` and `filename` say why and which, or the
    text alone does, if a later write failed."""

    status = 21


class RelayUnavailable(GlakeError, ConnectionError):
    """The relay service cannot be reached or started; the text says why."""


class RelayRefused(GlakeError, PermissionError):
    """The relay service refuses this process, or the service or its directory cannot be trusted."""


class BadMessage(GlakeError, ValueError):
    """A message that the protocol does not allow; the text names its field."""


class PeerRefused(GlakeError, PermissionError):
    """Another node refuses this one, or cannot be trusted; the text says why."""


class PeerLost(GlakeError, ConnectionError):
    """Another node cannot be reached, has ended, or no longer answers; the text says which."""


class PeerFailed(GlakeError, RuntimeError):
    """Bytes arrived damaged from another node, or could not be copied there."""


class BenchFailed(GlakeError, RuntimeError):
    """A platform could not be measured; the text names it, and what its process printed."""


# Errors of the trainer.


class DataMissing(InvalidArgument, FileNotFoundError):
    """There is no such file or folder of text, or nothing to read in it."""


class DataTooShort(InvalidArgument):
    """The text is too short for one sequence, or for one batch."""


class FolderInUse(GlakeError, RuntimeError):
    """Another job trains into the same folder of checkpoints."""


class NoWholeCheckpoint(GlakeError, RuntimeError):
    """There are checkpoints, but none of them is whole any more."""


class CheckpointMismatch(InvalidArgument):
    """The checkpoint is of another model or optimizer."""


class NoRoom(GlakeError, OSError):
    """The host's shared memory has no room for the state."""


class NotWritten(GlakeError, OSError):
    """A checkpoint could not be written; older ones are unchanged."""


class NotExported(GlakeError, OSError):
    """The model could not be written as a checkpoint of transformers."""


class RankLost(GlakeError, RuntimeError):
    """Another rank ended or stopped answering; under torchrun --max-restarts the job goes on."""


class Diverged(GlakeError, ArithmeticError):
    """The loss or a gradient is not finite."""


_BY_STATUS: dict[int, type[GlakeError]] = {
    kind.status: kind
    for kind in (
        InvalidArgument,
        InvalidDevice,
        InvalidPointer,
        OutOfMemory,
        UnknownOption,
        InvalidOption,
        DriverAbsent,
        DriverError,
        Forked,
        Internal,
        Corrupted,
        CopyFailed,
        CopyCancelled,
        CopyRefused,
        BusyTimeout,
        TransferClosed,
        MemoryOwed,
        Reentered,
        RegionPaused,
        RegionRefused,
        FileFailed,
    )
}


def from_status(status: int, text: str) -> GlakeError:
    """The exception for a non-zero glake_status. GlakeError itself if the status is not known
    here."""
    return _BY_STATUS.get(status, GlakeError)(text)
