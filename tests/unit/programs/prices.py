"""The simulator's prices of calls (arguments: its library, the calls)."""

import ctypes
import sys

simulator = ctypes.CDLL(sys.argv[1])
first, further = ctypes.c_double(), ctypes.c_double()
for call in sys.argv[2:]:
    assert simulator.simcuda_price(call.encode(), ctypes.byref(first), ctypes.byref(further)) == 0
    print(first.value, further.value)
