"""Reads memory of another node, here a second process. It needs pip install "glake[nodes]"

GLAKE_DRIVER=sim:dgx_a100 python examples/nodes.py
"""

import os
import secrets
import subprocess
import sys

import numpy as np

import glake
from glake import transfer

SIZE = 16 << 20

if len(sys.argv) > 1:  # the other node: gets the address, says what it has read
    address = sys.argv[1]
    with (
        transfer.Node(secret=os.environ["SECRET"], host="127.0.0.1") as node,
        node.connect(address) as peer,
    ):
        mine = glake.empty(SIZE, "cuda:5")
        peer.read("weights", mine, checksum=True).wait()
        read = np.empty(SIZE, np.uint8)
        transfer.copy(read, mine).wait()
        print(f"read {SIZE >> 20} MiB, all alike: {bool((read == 7).all())}", flush=True)
else:
    secret = secrets.token_hex(16)
    weights = glake.empty(SIZE, "cuda:0")
    transfer.copy(weights, np.full(SIZE, 7, np.uint8)).wait()
    with transfer.Node(listen="127.0.0.1:0", secret=secret) as node:
        node.expose("weights", weights)
        command = [sys.executable, __file__, str(node.address)]
        subprocess.run(command, env=os.environ | {"SECRET": secret}, check=True)
