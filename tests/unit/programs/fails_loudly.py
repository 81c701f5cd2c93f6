"""Prints a thousand lines, and fails."""

import sys

print("\n".join(map(str, range(1000))))
sys.exit(3)
