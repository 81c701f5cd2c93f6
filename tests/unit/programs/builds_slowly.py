"""Says what it builds, and goes on."""

import time

print("[2/26] Building", flush=True)
time.sleep(1.5)
