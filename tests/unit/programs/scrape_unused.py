"""A scrape takes nothing into use."""

import re
import sys

from scraping import scrape

import glake.metrics

with glake.metrics.serve_prometheus(0) as server:
    assert server.address == "127.0.0.1"
    found, _ = scrape(server)
    assert "glake._C" not in sys.modules and "torch" not in sys.modules
    assert set(found.values()) == {1.0} and len(found) == 6, found
    from glake import _C

    scrape(server)
    assert _C.driver_path() == ""  # no driver yet
    block = _C.malloc(1000, 3)
    found, _ = scrape(server)
    devices = {re.search('device="(.)"', name)[1] for name in found if "device=" in name}
    assert devices == {"3"}, devices
    assert not any(
        "transfer" in name and "node" not in name for name in found if "part=" not in name
    ), found
    from glake.transfer.engine import open_engine

    assert open_engine() is None
    _C.free(block)
    assert scrape(server)[0]['glake_allocated_bytes{device="3"}'] == 0
