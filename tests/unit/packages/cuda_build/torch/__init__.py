"""A CUDA build of torch whose libraries are not there."""

raise ImportError("libcudart")
