import torch

try:
    torch.linalg.qr(torch.randn(8, 8, device="cuda"))
except RuntimeError as error:
    assert "cusolver" in str(error), error
else:
    raise AssertionError("a factorisation nobody computed was given as done")
