"""Runs a Python with its arguments, and waits for it."""

import subprocess
import sys

subprocess.run([sys.executable, *sys.argv[1:]])
