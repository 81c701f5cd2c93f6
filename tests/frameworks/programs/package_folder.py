"""Prints the folder of a package (argument: its name)."""

import importlib.util
import sys

print(importlib.util.find_spec(sys.argv[1]).submodule_search_locations[0])
