import torch

torch.zeros(10, device="cuda")
raise ValueError("of its own")
