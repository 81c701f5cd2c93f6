"""Checks of which one ends the process."""

import json
import os
import sys


def check_one():
    return "passed"


def check_two():
    os._exit(7)


def check_three():
    return "passed"


for name in sys.argv[1:]:
    print(
        "RESULT " + json.dumps({"name": name, "status": globals()[name](), "text": ""}), flush=True
    )
