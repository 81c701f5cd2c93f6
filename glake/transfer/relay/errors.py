"""What goes wrong between a process and the relay service."""

from glake.errors import GlakeError


class RelayUnavailable(GlakeError, ConnectionError):
    """The relay service cannot be reached or started; the text says why."""


class RelayRefused(GlakeError, PermissionError):
    """The relay service, or its directory, is not to be trusted, or wants nothing to do with us."""


class BadMessage(GlakeError, ValueError):
    """A message that the protocol does not know: the text names its field."""
