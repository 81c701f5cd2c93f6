"""glake's metrics, scraped as Prometheus does and collected as OpenTelemetry does."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from glake.errors import InvalidArgument, PackageMissing
from glake.metrics import Collector, metric, reading, register_opentelemetry, serve_prometheus

Run = Callable[..., None]

SCRAPE = """
    import re, sys, urllib.request
    import glake.metrics

    def scrape(server):
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            lines = answer.read().decode().splitlines()
        found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
                 for line in lines if not line.startswith("#")}
        kinds = dict(line.split(" ")[2:] for line in lines if line.startswith("# TYPE"))
        return found, kinds
"""


@pytest.fixture
def run() -> Run:
    """run(code): in a Python of its own, over two simulated GPUs."""

    def run(code: str) -> None:
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRAPE) + textwrap.dedent(code)],
            env=clean | {"GLAKE_DRIVER": "sim:dgx_a100", "GLAKE_SIM_MEMORY": "128MiB"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_a_scrape_takes_nothing_into_use(run: Run) -> None:
    run("""
        with glake.metrics.serve_prometheus(0) as server:
            assert server.address == "127.0.0.1"
            found, _ = scrape(server)
            assert "glake._C" not in sys.modules and "torch" not in sys.modules
            assert set(found.values()) == {1.0} and len(found) == 5, found
            from glake import _C
            scrape(server)
            assert _C.driver_path() == ""  # no driver yet
            block = _C.malloc(1000, 3)
            found, _ = scrape(server)
            devices = {re.search('device="(.)"', name)[1] for name in found if "device=" in name}
            assert devices == {"3"}, devices
            assert not any("transfer" in name and "node" not in name for name in found
                           if "part=" not in name), found
            from glake.transfer.engine import open_engine
            assert open_engine() is None
            _C.free(block)
            assert scrape(server)[0]['glake_allocated_bytes{device="3"}'] == 0
    """)


def test_values_are_those_of_the_statistics(run: Run) -> None:
    run("""
        import glake, numpy as np
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
        calls = {name: value for name, value in found.items() if "driver_calls" in name
                 and 'device="0"' in name}
        of_memory = [value for name, value in calls.items()
                     if 'call="mark"' not in name and 'call="wait"' not in name]
        assert sum(of_memory) == stats["glake.driver_calls"] > 0, calls
        assert found['glake_driver_calls_total{call="create",device="0"}'] > 0
        assert len(moved["paths"]) > 1
        for path in moved["paths"]:
            label = '{path="%s"}' % path["path"]
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
    """)


def test_paths_that_fail(run: Run) -> None:
    run("""
        from unittest import mock
        from glake.metrics.reading import Reading
        from glake.transfer import engine

        class Broken:
            def stats(self):
                paths = [{"path": "a>b", "state": "quarantined", "failures": 3, "bytes": 5,
                          "chunks": 1},
                         {"path": "a>c", "state": "healthy", "failures": 0, "bytes": 7,
                          "chunks": 1}]
                return dict.fromkeys(("transfers bytes failed resent plain_copies plain_bytes "
                                      "running waiting").split(), 2) | {"paths": paths}

        with mock.patch.object(engine, "_open", Broken()):
            with glake.metrics.serve_prometheus(0) as server:
                found, _ = scrape(server)
        assert found["glake_transfer_paths_quarantined"] == 1
        assert found['glake_transfer_path_state{path="a>b",state="quarantined"}'] == 1
        assert found['glake_transfer_path_failures_total{path="a>b"}'] == 3
        assert found["glake_transfer_failures_total"] == 2
    """)


def test_what_cannot_be_read_is_told(run: Run) -> None:
    run("""
        import os
        from glake import _C
        _C.malloc(1000)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                from glake.metrics.reading import Reading
                read = {each.metric.name: dict(each.values) for each in Reading().read()}
                assert read["readable"][("allocator",)] == 0, read
                assert read["readable"][("nodes",)] == 1 and "allocated_bytes" not in read
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """)


def test_names_by_the_conventions() -> None:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

    registry = CollectorRegistry()
    registry.register(Collector())  # beside the user's own metrics
    for each in reading.metrics():
        Family(f"glake_{each.name}", each.help, "gauge")  # a valid name
        assert not each.name.endswith("_total") and each.help.endswith("."), each
        assert ("bytes" in each.name) == each.in_bytes, each
    names = [each.name for each in reading.metrics()]
    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Collector())


def test_a_port_that_cannot_be_had() -> None:
    with serve_prometheus(0) as server:
        with pytest.raises(InvalidArgument, match="cannot serve on 127.0.0.1"):
            serve_prometheus(server.port)
        for port, words in ((-1, "port -1"), ("80", "port '80'"), (1 << 16, "port 65536")):
            with pytest.raises(InvalidArgument, match=words):
                serve_prometheus(port)  # type: ignore[arg-type]
        port = server.port
    serve_prometheus(port).close()


@pytest.mark.parametrize("name", ["prometheus_client", "opentelemetry"])
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    call = Collector if name == "prometheus_client" else register_opentelemetry
    with pytest.raises(PackageMissing, match=r'pip install "glake\[metrics\]"'):
        call()


def test_opentelemetry(run: Run) -> None:
    run("""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        import glake
        from glake import _C
        reader = InMemoryMetricReader()
        glake.metrics.register_opentelemetry(MeterProvider([reader]))
        assert not _C.driver_path()
        _C.malloc(5 << 20, 1)
        data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        found = {each.name: each for each in data}
        held = found["glake.allocated_bytes"]
        (point,) = held.data.data_points
        assert held.unit == "By" and dict(point.attributes) == {"device": "1"}
        assert point.value == glake.stats(1)["allocated_bytes.all.current"]
        calls = found["glake.driver_calls"].data
        assert calls.is_monotonic
        created = [p.value for p in calls.data_points if p.attributes["call"] == "create"]
        assert created == [glake.stats(1)["glake.driver_calls.create"]]
    """)


def test_a_metric_is_plain() -> None:
    assert metric.Metric("x_bytes", "X.").in_bytes and not metric.Metric("x", "X.").in_bytes
