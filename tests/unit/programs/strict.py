"""Prints whether glake is strict."""

import os

print("started", os.environ["GLAKE_STRICT"])
