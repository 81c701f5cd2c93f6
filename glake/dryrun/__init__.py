"""Runs unmodified CUDA programs without a GPU, over stand-ins for the CUDA libraries."""
