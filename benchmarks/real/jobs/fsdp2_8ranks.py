"""FSDP2 of 3.5B parameters on 8 ranks: torchrun --nproc-per-node 8 fsdp2_8ranks.py

Weights in float32 and work in bf16, recomputed blocks, varying lengths (the same on every rank).
"""

import os
import random

import torch
import torch.distributed as dist
from gpt import Gpt, train
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.set_default_dtype(torch.float32)
torch.manual_seed(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
with torch.device("meta"):
    model = Gpt(4096, 32, 16, 32000)
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mp_policy=precision)
fully_shard(model, mp_policy=precision)
model.to_empty(device="cuda")
with torch.no_grad():
    for weight in model.parameters():
        weight.to_local().normal_(std=0.02)
lengths = random.Random(11)
train(model, [(4, 128 * lengths.randint(4, 16)) for _ in range(3)], quiet=rank > 0)
dist.destroy_process_group()
