"""Which modules of glake's `import torch` brings."""

import sys

import torch  # noqa: F401

print([name for name in sys.modules if name[:6] == "glake."])
