"""Writes a file after some seconds (arguments: the file, the seconds)."""

import sys
import time
from pathlib import Path

time.sleep(float(sys.argv[2]))
Path(sys.argv[1]).touch()
