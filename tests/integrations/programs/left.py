"""Prints whether the package is hooked."""

import torch_memory_saver

import glake

glake.enable(driver="sim")
print("hooked" if hasattr(torch_memory_saver.torch_memory_saver, "pause") else "left")
