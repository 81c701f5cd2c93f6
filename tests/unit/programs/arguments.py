"""Prints its arguments and glake's variables, and fails."""

import os
import sys

print(sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith("GLAKE_")})
sys.exit(7)
