"""Prints what it builds, and takes a while."""

import time

print("[2/26] Building", flush=True)
time.sleep(1.5)
