"""Goes on after torch was imported."""

import torch

print("went on", torch.version.cuda)
