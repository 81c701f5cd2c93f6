"""Reads pairs of an option and a text; prints what Python and C make of each: None, if refused."""

import json
import sys

from glake import _C, config, simcuda
from glake.errors import InvalidOption


def in_python(name, text):
    try:
        return [config.parse(name, text)]
    except InvalidOption:
        return None


def in_c(name, text):
    simulated = name.startswith("sim_")
    try:
        if simulated:
            simcuda.configure(name[4:], text)
        else:
            _C.configure(name, text)
    except InvalidOption:
        return None
    return [
        next(row["value"] for row in _C.options() if row["name"] == name) if not simulated else None
    ]


print(json.dumps([[in_python(*pair), in_c(*pair)] for pair in json.load(sys.stdin)]))
