"""What a child imports and is told."""

import json
import sys
import trace

import glake

print(json.dumps([glake.__file__, trace.__file__, sys.argv]))
