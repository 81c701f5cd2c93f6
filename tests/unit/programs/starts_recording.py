"""Starts recording.py (argument: its folder)."""

import os
import subprocess
import sys
from pathlib import Path

recording = Path(__file__).with_name("recording.py")
subprocess.run([sys.executable, recording, str(os.getpid()), sys.argv[1]])
