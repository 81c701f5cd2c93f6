"""Reads and writes files, from and to host and GPU memory, by several requests at once and past the
page cache."""

from glake.transfer.files.default import read_file, stats, write_file
from glake.transfer.files.engine import FileEngine, FileStats
from glake.transfer.files.handle import FileTransfer

__all__ = ["FileEngine", "FileStats", "FileTransfer", "read_file", "stats", "write_file"]
