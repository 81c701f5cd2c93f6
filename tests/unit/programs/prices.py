"""Prints the simulator's prices of calls (arguments: its library, the calls)."""

import ctypes
import sys

simulator = ctypes.CDLL(sys.argv[1])
first, further, mapping = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
for call in sys.argv[2:]:
    name = call.encode()
    assert simulator.simcuda_price(name, ctypes.byref(first), ctypes.byref(further)) == 0
    assert simulator.simcuda_mapping_price(None, name, ctypes.byref(mapping)) == 0
    print(first.value, further.value, mapping.value)
