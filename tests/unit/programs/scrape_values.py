"""The values of a scrape are those of the statistics."""

import numpy as np
from scraping import scrape

import glake.metrics
from glake import _C, transfer

blocks = [_C.malloc(5 << 20, 0), _C.malloc(3 << 20, 1)]
_C.free(_C.malloc(1 << 20, 0))
raw = transfer.Raw(blocks[0], 5 << 20, 0)
transfer.copy(raw, np.ones(5 << 20, np.uint8)).wait()
with glake.metrics.serve_prometheus(0) as server:
    found, kinds = scrape(server)
    stats, moved = glake.stats(0), transfer.stats()
for name, key in {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "owed_bytes": "glake.owed_bytes",
    "allocations_total": "allocation.all.allocated",
    "frees_total": "allocation.all.freed",
    "out_of_memory_total": "num_ooms",
}.items():
    assert found[f'glake_{name}{{device="0"}}'] == stats[key], name
assert found['glake_allocated_bytes{device="1"}'] == 3 << 20
calls = {
    name: value for name, value in found.items() if "driver_calls" in name and 'device="0"' in name
}
of_memory = [
    value
    for name, value in calls.items()
    if 'call="mark"' not in name and 'call="wait"' not in name
]
assert sum(of_memory) == stats["glake.driver_calls"] > 0, calls
assert found['glake_driver_calls_total{call="create",device="0"}'] > 0
assert len(moved["paths"]) > 1
for path in moved["paths"]:
    label = f'{{path="{path["path"]}"}}'
    assert found["glake_transfer_path_bytes_total" + label] == path["bytes"]
    label = label[:-1] + ',state="healthy"}'
    assert found["glake_transfer_path_state" + label] == 1
assert found["glake_transfer_bytes_total"] == 5 << 20
assert found["glake_transfers_total"] == 1 and found["glake_transfers_running"] == 0
assert found["glake_transfer_paths_quarantined"] == 0
assert found['glake_file_bytes_total{operation="read"}'] == 0
assert found['glake_node_bytes_total{leg="gpu"}'] == 0
assert kinds["glake_transfer_path_bytes_total"] == "counter"
assert kinds["glake_allocated_bytes"] == "gauge"
transfer.default_engine().close()
