"""Prints which modules a child imports, and its arguments."""

import json
import sys
import trace

import glake

print(json.dumps([glake.__file__, trace.__file__, sys.argv]))
