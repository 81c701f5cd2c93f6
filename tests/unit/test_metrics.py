"""glake's metrics, scraped as Prometheus does and collected as OpenTelemetry does."""

import ast
import builtins
import re
import sys
from pathlib import Path

import pytest
from own_python import output

from glake.errors import InvalidArgument, PackageMissing
from glake.metrics import Collector, metric, reading, register_opentelemetry, serve_prometheus

PROGRAMS = Path(__file__).parent / "programs"


def run(name: str) -> None:
    """Runs a program, which must succeed, on simulated GPUs."""
    output(PROGRAMS / name, GLAKE_DRIVER="sim:dgx_a100", GLAKE_SIM_MEMORY="128MiB")


def test_a_scrape_takes_nothing_into_use() -> None:
    run("scrape_unused.py")


def test_values_are_those_of_the_statistics() -> None:
    run("scrape_values.py")


def test_paths_that_fail() -> None:
    run("scrape_failures.py")


def test_what_cannot_be_read_is_told() -> None:
    run("unreadable.py")


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


def test_each_example_of_the_docs_imports_what_it_uses() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    examples = re.findall(r"^```python\n(.+?)^```", page, re.DOTALL | re.MULTILINE)
    assert examples
    for each in examples:
        nodes = list(ast.walk(ast.parse(each)))
        bound = {node.name for node in nodes if isinstance(node, ast.alias)}
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        assert used <= bound | set(vars(builtins)), each


def test_a_port_that_cannot_be_had() -> None:
    with serve_prometheus(0) as server:
        with pytest.raises(InvalidArgument, match="cannot serve on 127.0.0.1"):
            serve_prometheus(server.port)
        for port, words in ((-1, "port -1"), ("80", "port '80'"), (1 << 16, "port 65536")):
            with pytest.raises(InvalidArgument, match=words):
                serve_prometheus(port)  # type: ignore[arg-type]
        for address in ("", "256.1.1.1", "\u00e9" * 300):
            with pytest.raises(InvalidArgument, match="cannot serve on"):
                serve_prometheus(0, address)
        port = server.port
    serve_prometheus(port).close()


def test_a_forked_child_does_not_keep_the_port() -> None:
    run("scrape_and_fork.py")


@pytest.mark.parametrize("name", ["prometheus_client", "opentelemetry"])
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    call = Collector if name == "prometheus_client" else register_opentelemetry
    with pytest.raises(PackageMissing, match=r'pip install "glake\[metrics\]"'):
        call()


def test_opentelemetry() -> None:
    run("opentelemetry_reader.py")


def test_a_metric_is_plain() -> None:
    assert metric.Metric("x_bytes", "X.").in_bytes and not metric.Metric("x", "X.").in_bytes
