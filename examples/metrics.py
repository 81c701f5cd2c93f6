"""What Prometheus scrapes of a process that uses glake. It needs pip install "glake[metrics]".

GLAKE_DRIVER=sim:dgx_a100 python examples/metrics.py
"""

import urllib.request

import numpy as np

import glake
from glake import metrics, transfer

block = glake.empty("64MiB", "cuda:0")
transfer.copy(block, np.ones(64 << 20, np.uint8)).wait()

server = metrics.serve_prometheus(port=0)  # on 127.0.0.1 alone
text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
server.close()

for line in text.splitlines():
    if line.startswith(("glake_transfer_path_bytes_total", "glake_reserved_bytes")):
        print(line)
