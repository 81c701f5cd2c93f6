"""Probes a simulated machine whose links are not what its topology says, in its own process.

Usage: probe_machine.py CASE, JSON: {"links": [[from, to, GB/s], ...], "nominal": a platforms file
(default: the simulator's own), "then": Python to run afterwards}. Prints what it found as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from glake import _C, simcuda
from glake.errors import GlakeError
from glake.transfer import Engine, topology
from glake.transfer.engine import open_engine
from glake.transfer.topology.probe import measure

case = json.loads(sys.argv[1])
simcuda.configure("phantom", 1)
for key, value in case.get("options", {}).items():
    simcuda.configure(key, value)
_C.device_count()
for link in case.get("links", []):
    simcuda.set_link(*link)
nominal = topology.from_file(Path(case["nominal"])) if "nominal" in case else None
out: dict[str, Any] = {}
start = simcuda.now_ns()
try:
    found = measure(nominal)
    out["platform"] = found.platform.as_dict()
    out["seconds"] = (simcuda.now_ns() - start) / 1e9
    with Engine() as engine:
        out["engine"] = engine.topology.platform.as_dict()
        out["plan"] = _C.transfer_explain(0, -1, 0, 1 << 30)
    simcuda.reset()
    out["after_reset"] = "probed" in topology.current().source
except GlakeError as error:
    out["error"] = [type(error).__name__, str(error)]
    out["open"] = open_engine() is not None
    out["kept"] = "probed" in topology.current().source
    for link in case.get("repaired", []):
        simcuda.set_link(*link)
    if (engine := open_engine()) is not None:
        engine.close()
    out["blocks"] = simcuda.ledger()["host_blocks"]
    out["streams"] = simcuda.ledger()["streams"]
print(json.dumps(out))
