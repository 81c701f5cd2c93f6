"""Prints 1 where a file is there, and 0 where it is not."""

import os
import sys

print(int(os.path.exists(sys.argv[1])))
