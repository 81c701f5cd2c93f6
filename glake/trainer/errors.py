"""What the trainer raises beside what glake itself does."""

from __future__ import annotations

from glake.errors import GlakeError, InvalidArgument, InvalidOption


class DataMissing(InvalidArgument, FileNotFoundError):
    """There is no such file or folder of text, or nothing to read in it."""


class DataTooShort(InvalidArgument):
    """The text does not make one sequence, or not one batch."""


class PackageMissing(InvalidOption, ImportError):
    """An optional package that an option needs; the text names the line that installs it."""


class FolderInUse(GlakeError, RuntimeError):
    """Another job trains into the same folder of checkpoints."""


class NoWholeCheckpoint(GlakeError, RuntimeError):
    """There are checkpoints that were once whole, and none of them is now."""


class CheckpointMismatch(InvalidArgument):
    """The checkpoint is of another model or optimizer."""


class NotExported(GlakeError, OSError):
    """A checkpoint of transformers' could not be written."""


class RankLost(GlakeError, RuntimeError):
    """Another rank ended or stopped answering; under torchrun --max-restarts the job goes on."""


class Diverged(GlakeError, ArithmeticError):
    """The loss is no finite number any more."""
