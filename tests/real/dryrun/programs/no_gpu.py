import torch

print(torch.zeros(3).sum())
