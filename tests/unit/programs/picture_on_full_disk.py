"""Runs the `glake` command with a file-size limit, which refuses writes as a full disk does."""

import resource
import signal
import sys

import matplotlib.backends.backend_svg
import matplotlib.font_manager  # noqa: F401 (writes its cache of fonts)

from glake.cli import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
main(sys.argv[1:])
