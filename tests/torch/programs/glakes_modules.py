"""Prints which modules of glake `import torch` brings."""

import sys

import torch  # noqa: F401

print([name for name in sys.modules if name[:6] == "glake."])
