"""Writes a result into a file, and noise to its output."""

import sys
from pathlib import Path

Path(sys.argv[1]).write_text("[1]")
print("noise")
