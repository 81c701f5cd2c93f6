"""Is killed by a signal."""

import os

os.kill(os.getpid(), 9)
