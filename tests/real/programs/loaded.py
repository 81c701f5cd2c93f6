import torch

torch.ones(3, device="cuda")
with open("/proc/self/maps") as maps:
    paths = {line.split()[-1] for line in maps if "libcudart" in line}
assert len(paths) == 1, paths
print(*paths)
