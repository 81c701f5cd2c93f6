"""Prints which modules an import brings (arguments: the import, then the modules to look for)."""

import importlib
import sys

importlib.import_module(sys.argv[1])
print([name for name in sys.argv[2:] if name in sys.modules])
