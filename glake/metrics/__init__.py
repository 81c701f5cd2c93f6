"""glake's figures for Prometheus and OpenTelemetry. docs/metrics.md lists the names.

Figures are read at each scrape. Between two scrapes nothing runs, and nothing is counted twice.
Importing this imports neither package.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.metrics.open_telemetry import register_opentelemetry
    from glake.metrics.prometheus import Collector, Server, serve_prometheus

_HOME = {
    "Collector": "prometheus",
    "Server": "prometheus",
    "register_opentelemetry": "open_telemetry",
    "serve_prometheus": "prometheus",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'glake.metrics' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"glake.metrics.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


__all__ = ["Collector", "Server", "register_opentelemetry", "serve_prometheus"]
