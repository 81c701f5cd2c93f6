"""A scrape shows the paths that fail."""

from unittest import mock

from scraping import scrape

import glake.metrics
from glake.transfer import engine

COUNTS = (
    *("transfers", "bytes", "failed", "resent"),
    *("plain_copies", "plain_bytes", "running", "waiting"),
)


class Broken:
    def stats(self):
        paths = [
            {"path": "a>b", "state": "quarantined", "failures": 3, "bytes": 5, "chunks": 1},
            {"path": "a>c", "state": "healthy", "failures": 0, "bytes": 7, "chunks": 1},
        ]
        return dict.fromkeys(COUNTS, 2) | {"paths": paths}


with mock.patch.object(engine, "_open", Broken()), glake.metrics.serve_prometheus(0) as server:
    found, _ = scrape(server)
assert found["glake_transfer_paths_quarantined"] == 1
assert found['glake_transfer_path_state{path="a>b",state="quarantined"}'] == 1
assert found['glake_transfer_path_failures_total{path="a>b"}'] == 3
assert found["glake_transfer_failures_total"] == 2
