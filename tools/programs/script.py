"""A tensor whose memory comes from glake."""

import torch

import glake

kept = torch.ones(1 << 20)
print("of glake:", glake.stats()["allocated_bytes.all.current"])
