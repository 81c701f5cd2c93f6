"""Reads files into host and GPU memory, and writes them from there. Several requests run at once,
past the page cache."""

from glake.transfer.files.default import read_file, stats, write_file
from glake.transfer.files.engine import FileEngine, FileStats
from glake.transfer.files.handle import FileTransfer

__all__ = ["FileEngine", "FileStats", "FileTransfer", "read_file", "stats", "write_file"]
