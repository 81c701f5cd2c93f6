"""Another node, in a process of its own with its own GPUs. It does what its standard input says.

Each line is a Python expression over `node`, `t`, `np`, `Device` and `kept`. The answer is the repr
of its value. It begins with ">> ", because engines print too.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "inside"))
from memory import Device  # noqa: E402

from glake import transfer as t  # noqa: E402


def main() -> None:
    node = t.Node(**json.loads(sys.argv[1]))
    names = {"node": node, "t": t, "np": np, "Device": Device, "kept": {}}
    print(">>", node.address, flush=True)
    for line in sys.stdin:
        try:
            print(">>", repr(eval(line, names)), flush=True)
        except Exception as error:
            print(f">> {type(error).__name__}: {error}", flush=True)
    node.close()


if __name__ == "__main__":
    main()
