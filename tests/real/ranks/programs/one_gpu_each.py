"""A rank that sees only its own GPU, as launchers set it up. Prints "right"."""

import os

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(size - rank)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

assert torch.cuda.device_count() == 1
torch.cuda.set_device(0)
assert torch.cuda.get_device_properties(0).pci_bus_id == size - rank + 1
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
total = torch.tensor([rank + 1] * 1000, dtype=torch.int32, device="cuda")
dist.all_reduce(total)
torch.cuda.synchronize()
assert total.cpu().eq(size * (size + 1) // 2).all()
dist.destroy_process_group()
print("right", flush=True)
