import sys

import torch

preset, devices, major, minor, multiprocessors = sys.argv[1], *map(int, sys.argv[2:])
assert torch.cuda.is_available() and torch.cuda.device_count() == devices
for index in range(devices):
    told = torch.cuda.get_device_properties(index)
    assert preset in told.name, told
    assert (told.major, told.minor) == (major, minor), told
    assert told.multi_processor_count == multiprocessors, told
    assert told.total_memory == 3 << 30, told
    assert told.pci_bus_id == index + 1, told
free, total = torch.cuda.mem_get_info()
assert total == 3 << 30 and 0 < free <= total
assert torch.cuda.can_device_access_peer(0, 1)
assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() > 90000
