"""What goes wrong with a dry run itself. A job that runs out of memory is a result, no error."""

from glake.errors import GlakeError


class DryRunError(GlakeError):
    """The dry run could not be done: no CUDA build of torch, a script that fails, bad figures."""
