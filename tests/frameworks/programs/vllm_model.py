"""Makes the model of vllm_engine.py in a folder (argument), and prints its path."""

import sys
from pathlib import Path

from vllm_engine import model

print(model(Path(sys.argv[1])))
