"""Prints how many GPUs PyTorch counts, and the bus numbers of two of them."""

import torch

assert torch.cuda.device_count() == torch._C._cuda_getDeviceCount()
print(torch.cuda.device_count(), *(torch.cuda.get_device_properties(i).pci_bus_id for i in (0, 1)))
