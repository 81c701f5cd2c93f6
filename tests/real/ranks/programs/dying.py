"""Rank 1 is killed inside a job. NCCL soon tells rank 0 which rank it was."""

import os
import signal
import time

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.ones(4).to("cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
work = dist.all_reduce(x, async_op=True)
start = time.monotonic()
while time.monotonic() - start < 60:
    time.sleep(0.1)  # the watchdog ends this process
    work.is_completed()
