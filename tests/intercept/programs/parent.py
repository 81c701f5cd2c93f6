"""Prints its parent's number."""

import os

print(os.getppid())
