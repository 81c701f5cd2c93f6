"""The version of a CUDA build, as torch writes it."""

__version__ = "2.14.1+cu130"
git_version = "0"
cuda = "13.0"
