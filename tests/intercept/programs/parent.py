"""Prints its parent's process number."""

import os

print(os.getppid())
